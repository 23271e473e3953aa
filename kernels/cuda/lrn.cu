// Local response normalisation: s_c = bias + alpha * sum over |j - c| <= radius of x_j^2, y_c = x_c * s_c^-beta.
// Backward: dx_c = dy_c * s_c^-beta - 2 * alpha * beta * x_c * sum over |j - c| <= radius of dy_j * y_j / s_j.
//
// A block loads entire rows of channels into shared memory, and each thread sums its own window there, so each value is
// read from memory once. beta = 0.75, the usual value, is two square roots.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/fast_division.cuh"

namespace lockstep::cuda {

namespace {

constexpr Index kSharedFloats = 4096;  // per block, or one row if that is longer

__device__ float power(float s, float beta) {  // s^-beta
  if (beta == 0.75F) {
    const float root = rsqrtf(s);  // s^-1/2
    return root * sqrtf(root);     // and s^-1/4
  }
  return powf(s, -beta);
}

__device__ float window_sum(const float* row, Index c, const LrnParams& params) {
  const Index last = min(params.channels - 1, c + params.radius);
  float sum = 0;
  for (Index j = max(static_cast<Index>(0), c - params.radius); j <= last; ++j) sum += row[j];
  return sum;
}

template <typename T> __global__ void lrn_forward(LrnParams params, Divisor<ShortIndex> channels, const T* x, T* y,
                                                  float* scale, Index rows_of_block) {
  float* const terms = dynamic_shared<float>();
  for (Index first = blockIdx.x * rows_of_block; first < params.rows; first += gridDim.x * rows_of_block) {
    const Index rows = min(rows_of_block, params.rows - first), count = rows * params.channels,
                begin = first * params.channels;
    for (Index i = threadIdx.x; i < count; i += blockDim.x) terms[i] = widen(x[begin + i]) * widen(x[begin + i]);
    __syncthreads();
    for (Index i = threadIdx.x; i < count; i += blockDim.x) {
      const Index c = channels.divide(static_cast<ShortIndex>(i)).remainder;
      const float s = params.bias + params.alpha * window_sum(terms + (i - c), c, params);
      scale[begin + i] = s;
      write(y[begin + i], widen(x[begin + i]) * power(s, params.beta));
    }
    __syncthreads();
  }
}

template <typename T> __global__ void lrn_backward_rows(LrnParams params, Divisor<ShortIndex> channels, const T* x,
                                                        const T* y, const float* scale, const T* y_grad, T* x_grad,
                                                        bool accumulate, Index rows_of_block) {
  float* const terms = dynamic_shared<float>();
  const float factor = 2 * params.alpha * params.beta;
  for (Index first = blockIdx.x * rows_of_block; first < params.rows; first += gridDim.x * rows_of_block) {
    const Index rows = min(rows_of_block, params.rows - first), count = rows * params.channels,
                begin = first * params.channels;
    for (Index i = threadIdx.x; i < count; i += blockDim.x)
      terms[i] = widen(y_grad[begin + i]) * widen(y[begin + i]) / scale[begin + i];
    __syncthreads();
    for (Index i = threadIdx.x; i < count; i += blockDim.x) {
      const Index c = channels.divide(static_cast<ShortIndex>(i)).remainder;
      const float own = widen(y_grad[begin + i]) * power(scale[begin + i], params.beta);
      store(x_grad[begin + i], own - factor * widen(x[begin + i]) * window_sum(terms + (i - c), c, params), accumulate);
    }
    __syncthreads();
  }
}

struct Division {
  Index rows_of_block;
  unsigned blocks;
  std::size_t shared_bytes;
};
Division divide(const LrnParams& params) {
  const Index rows = std::max<Index>(1, kSharedFloats / params.channels);
  return {rows, blocks_for(params.rows, rows), static_cast<std::size_t>(rows * params.channels) * sizeof(float)};
}

void lrn(const LrnParams& params, In x, Out y, Out scale, Stream& stream) {
  if (params.rows == 0 || params.channels == 0) return;
  require_lrn_channels(params);
  const Division by = divide(params);
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((lrn_forward<T>), by.blocks, kThreads, by.shared_bytes, stream, params,
                    Divisor<ShortIndex>(params.channels), x.as<T>(), y.as<T>(), scale.floats(), by.rows_of_block);
  });
}

void lrn_backward(const LrnParams& params, In x, In y, In scale, In y_grad, Out x_grad, Stream& stream) {
  if (params.rows == 0 || params.channels == 0) return;
  require_lrn_channels(params);
  const Division by = divide(params);
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((lrn_backward_rows<T>), by.blocks, kThreads, by.shared_bytes, stream, params,
                    Divisor<ShortIndex>(params.channels), x.as<T>(), y.as<T>(), scale.floats(), y_grad.as<T>(),
                    x_grad.as<T>(), x_grad.accumulate, by.rows_of_block);
  });
}

}  // namespace

void use_lrn(KernelTable& table) {
  table.lrn = lrn;
  table.lrn_backward = lrn_backward;
}

}  // namespace lockstep::cuda
