// The bias: added to every row; its gradient, the sums of the columns, in two steps of fixed order (no atomics: the same bits every time).
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/mixed.h"

namespace lockstep::cuda {

namespace {

constexpr int kColumns = 32;  // of a block: a warp reads a row of them
constexpr int kRows = 8;      // threads of a block that share a column
constexpr Index kMostRowParts = 256;

template <typename T>
__global__ void add_bias(T* y, const T* bias, Index count, Index channels) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) store(y[i], widen(bias[i % channels]), true);
}

// sums (parts, channels): part p is the sum of the rows p, p + parts, ...
template <typename T>
__global__ void sum_columns(const T* grad, float* sums, Index rows, Index channels) {
  __shared__ float shared[kRows][kColumns];
  const Index column = static_cast<Index>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < channels)
    for (Index row = static_cast<Index>(blockIdx.y) * kRows + threadIdx.y; row < rows; row += static_cast<Index>(gridDim.y) * kRows)
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

template <typename T>
void run_bias(T* y, const T* bias, Index rows, Index channels, Stream& stream) {
  const Index count = rows * channels;
  if (count > 0) LOCKSTEP_LAUNCH((add_bias<T>), blocks_for(count), kThreads, 0, stream, y, bias, count, channels);
}

template <typename T>
void run_bias_backward(const T* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream& stream) {
  if (channels == 0) return;
  const Index parts = std::clamp<Index>(rows / (kRows * 8), 1, kMostRowParts);
  const Scratch sums(stream, static_cast<std::size_t>(parts * channels) * sizeof(float));
  const dim3 grid(static_cast<unsigned>((channels + kColumns - 1) / kColumns), static_cast<unsigned>(parts));
  LOCKSTEP_LAUNCH((sum_columns<T>), grid, dim3(kColumns, kRows), 0, stream, y_grad, sums.as<float>(), rows, channels);
  LOCKSTEP_LAUNCH(sum_parts, blocks_for(channels), kThreads, 0, stream, sums.as<const float>(), bias_grad, parts, channels, accumulate);
}

}  // namespace

void bias(float* y, const float* bias, Index rows, Index channels, Stream& stream) { run_bias(y, bias, rows, channels, stream); }

void bias_backward(const float* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream& stream) {
  run_bias_backward(y_grad, bias_grad, rows, channels, accumulate, stream);
}

void mixed::bias(DType type, void* y, const void* bias, Index rows, Index channels, Stream& stream) {
  with_half(type, [&](auto* of) { run_bias(like(of, y), like(of, bias), rows, channels, stream); });
}

void mixed::bias_backward(DType type, const void* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream& stream) {
  with_half(type, [&](auto* of) { run_bias_backward(like(of, y_grad), bias_grad, rows, channels, accumulate, stream); });
}

}  // namespace lockstep::cuda
