// The bias is added to every row; its gradient is the column sums, computed in two steps of fixed order without
// atomics, so it is reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kColumns = 32;  // columns per block: a warp reads a row of them
constexpr int kRows = 8;      // threads per block that share a column
constexpr Index kMostRowParts = 256;

template <typename T> __global__ void add_to_rows(T* y, const T* bias, Index count, Index channels) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) store(y[i], widen(bias[i % channels]), true);
}

// sums (parts, channels): part p is the sum of the rows p, p + parts, ...
template <typename T> __global__ void sum_columns(const T* grad, float* sums, Index rows, Index channels) {
  __shared__ float shared[kRows][kColumns];
  const Index column = static_cast<Index>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < channels)
    for (Index row = static_cast<Index>(blockIdx.y) * kRows + threadIdx.y; row < rows;
         row += static_cast<Index>(gridDim.y) * kRows)
      sum += widen(grad[row * channels + column]);
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= channels) return;
  for (int row = 1; row < kRows; ++row) sum += shared[row][threadIdx.x];
  sums[blockIdx.y * channels + column] = sum;
}

__global__ void sum_parts(const float* sums, float* out, Index parts, Index channels, bool accumulate) {
  for (Index column = first_item(); column < channels; column += stride_of_grid()) {
    float sum = 0;
    for (Index part = 0; part < parts; ++part) sum += sums[part * channels + column];
    store(out[column], sum, accumulate);
  }
}

}  // namespace

void add_bias(Out y, In bias, Stream& stream) {
  const Index count = y.count();
  with_float(y.dtype, [&]<typename T>(T*) {
    if (count > 0)
      LOCKSTEP_LAUNCH((add_to_rows<T>), blocks_for(count), kThreads, 0, stream, y.as<T>(), bias.as<T>(), count,
                      bias.count());
  });
}

void bias_backward(In y_grad, Out bias_grad, Stream& stream) {
  const Index channels = bias_grad.count();
  if (channels == 0) return;
  const Index rows = y_grad.count() / channels, parts = std::clamp<Index>(rows / (kRows * 8), 1, kMostRowParts);
  const Scratch sums(stream, static_cast<std::size_t>(parts * channels) * sizeof(float));
  const dim3 grid(static_cast<unsigned>((channels + kColumns - 1) / kColumns), static_cast<unsigned>(parts));
  with_float(y_grad.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((sum_columns<T>), grid, dim3(kColumns, kRows), 0, stream, y_grad.as<T>(), sums.as<float>(), rows,
                    channels);
  });
  LOCKSTEP_LAUNCH(sum_parts, blocks_for(channels), kThreads, 0, stream, sums.as<const float>(), bias_grad.floats(),
                  parts, channels, bias_grad.accumulate);
}

void use_bias(KernelTable& table) {
  table.bias = add_bias;
  table.bias_backward = bias_backward;
}

}  // namespace lockstep::cuda
