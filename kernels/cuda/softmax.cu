// Softmax of rows, and its logarithm: one warp per row.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

template <typename T> __global__ void softmax_rows(const T* x, bool log, Index rows, Index channels, T* y) {
  const int lane = threadIdx.x % 32;
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const T* const row = x + n * channels;
    float largest = -INFINITY, sum = 0;
    for (Index c = lane; c < channels; c += 32) largest = fmaxf(largest, widen(row[c]));
    largest = warp_max(largest);
    for (Index c = lane; c < channels; c += 32) sum += expf(widen(row[c]) - largest);
    sum = warp_sum(sum);
    const float log_sum = log ? logf(sum) : 0.0F, inverse = 1.0F / sum;
    for (Index c = lane; c < channels; c += 32) {
      // Subtracted first, because largest + log_sum would be rounded to the precision of `largest`.
      const float distance = widen(row[c]) - largest;
      write(y[n * channels + c], log ? distance - log_sum : expf(distance) * inverse);
    }
  }
}

template <typename T> __global__ void softmax_rows_backward(const T* y, const T* y_grad, bool log, Index rows,
                                                            Index channels, T* x_grad, bool accumulate) {
  const int lane = threadIdx.x % 32;
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const Index at = n * channels;
    float sum = 0;
    for (Index c = lane; c < channels; c += 32)
      sum += log ? widen(y_grad[at + c]) : widen(y_grad[at + c]) * widen(y[at + c]);
    sum = warp_sum(sum);
    for (Index c = lane; c < channels; c += 32) {
      const float value = widen(y[at + c]), grad = widen(y_grad[at + c]);
      store(x_grad[at + c], log ? grad - expf(value) * sum : value * (grad - sum), accumulate);
    }
  }
}

void softmax(In x, bool log, Out y, Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (rows == 0 || channels == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((softmax_rows<T>), blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(), log, rows,
                    channels, y.as<T>());
  });
}

void softmax_backward(In y, In y_grad, bool log, Out x_grad, Stream& stream) {
  const Index rows = y.shape[0], channels = y.shape[1];
  if (rows == 0 || channels == 0) return;
  with_float(y.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((softmax_rows_backward<T>), blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, y.as<T>(),
                    y_grad.as<T>(), log, rows, channels, x_grad.as<T>(), x_grad.accumulate);
  });
}

}  // namespace

void use_softmax(KernelTable& table) {
  table.softmax = softmax;
  table.softmax_backward = softmax_backward;
}

}  // namespace lockstep::cuda
