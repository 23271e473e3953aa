// Layer norm and RMS norm: one warp per row. Gradients of weight and bias are column sums, computed in two steps of
// fixed order without atomics, so they are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/warp.cuh"

namespace lockstep::cuda {

namespace {

constexpr int kLayerColumns = 32;  // columns per block: a warp reads a row of them
constexpr int kLayerRows = 8;      // threads per block that share a column
constexpr Index kMostLayerParts = 256;

__device__ inline float weight_at(const float* weight, Index c) { return weight == nullptr ? 1.0F : weight[c]; }

// `means` null: RMS norm.
template <typename T> __global__ void norm_rows(const T* x, const float* weight, const float* bias, float epsilon,
                                                Index rows, Index channels, T* y, float* means, float* rstds) {
  const int lane = threadIdx.x % 32;
  const float share = 1.0F / static_cast<float>(channels);
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const T* const row = x + n * channels;
    float mean = 0, square = 0;
    if (means != nullptr) {
      for (Index c = lane; c < channels; c += 32) mean += widen(row[c]);
      mean = warp_sum(mean) * share;
    }
    for (Index c = lane; c < channels; c += 32) {
      const float centred = widen(row[c]) - mean;
      square += centred * centred;
    }
    const float rstd = 1.0F / sqrtf(warp_sum(square) * share + epsilon);
    for (Index c = lane; c < channels; c += 32)
      write(y[n * channels + c],
            (widen(row[c]) - mean) * rstd * weight_at(weight, c) + (bias == nullptr ? 0.0F : bias[c]));
    if (lane == 0) {
      if (means != nullptr) means[n] = mean;
      rstds[n] = rstd;
    }
  }
}

template <typename T> __global__ void norm_rows_backward(const T* x, const float* weight, const float* means,
                                                         const float* rstds, const T* y_grad, Index rows,
                                                         Index channels, T* x_grad, bool accumulate) {
  const int lane = threadIdx.x % 32;
  const float share = 1.0F / static_cast<float>(channels);
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const Index at = n * channels;
    const float mean = means == nullptr ? 0.0F : means[n], rstd = rstds[n];
    float sum = 0, product = 0;
    for (Index c = lane; c < channels; c += 32) {
      const float gradient = widen(y_grad[at + c]) * weight_at(weight, c);
      sum += gradient;
      product += gradient * ((widen(x[at + c]) - mean) * rstd);
    }
    sum = means == nullptr ? 0.0F : warp_sum(sum) * share;
    product = warp_sum(product) * share;
    for (Index c = lane; c < channels; c += 32) {
      const float gradient = widen(y_grad[at + c]) * weight_at(weight, c), normal = (widen(x[at + c]) - mean) * rstd;
      store(x_grad[at + c], rstd * (gradient - sum - normal * product), accumulate);
    }
  }
}

// weights, biases (parts, channels): part p has the sums over the rows of blocks p, p + parts, ...
template <typename T> __global__ void norm_columns(const T* x, const float* means, const float* rstds, const T* y_grad,
                                                   Index rows, Index channels, float* weights, float* biases) {
  __shared__ float products[kLayerRows][kLayerColumns];
  __shared__ float sums[kLayerRows][kLayerColumns];
  const Index column = static_cast<Index>(blockIdx.x) * kLayerColumns + threadIdx.x;
  float product = 0, sum = 0;
  if (column < channels)
    for (Index n = static_cast<Index>(blockIdx.y) * kLayerRows + threadIdx.y; n < rows;
         n += static_cast<Index>(gridDim.y) * kLayerRows) {
      const float grad = widen(y_grad[n * channels + column]), mean = means == nullptr ? 0.0F : means[n];
      product += grad * ((widen(x[n * channels + column]) - mean) * rstds[n]);
      sum += grad;
    }
  products[threadIdx.y][threadIdx.x] = product;
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= channels) return;
  for (int row = 1; row < kLayerRows; ++row) product += products[row][threadIdx.x], sum += sums[row][threadIdx.x];
  weights[blockIdx.y * channels + column] = product;
  biases[blockIdx.y * channels + column] = sum;
}

__global__ void sum_norm_parts(const float* sums, Index parts, Index channels, float* out, bool accumulate) {
  for (Index column = first_item(); column < channels; column += stride_of_grid()) {
    float sum = 0;
    for (Index part = 0; part < parts; ++part) sum += sums[part * channels + column];
    store(out[column], sum, accumulate);
  }
}

void layer_norm(In x, In weight, In bias, float epsilon, Out y, Out mean, Out rstd, Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (rows == 0 || channels == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((norm_rows<T>), blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(), weight.floats(),
                    bias.floats(), epsilon, rows, channels, y.as<T>(), mean.floats(), rstd.floats());
  });
}

void parameter_gradients(In x, In mean, In rstd, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1],
              parts = std::clamp<Index>(rows / (kLayerRows * 8), 1, kMostLayerParts);
  const Scratch weights(stream, static_cast<std::size_t>(parts * channels) * sizeof(float));
  const Scratch biases(stream, static_cast<std::size_t>(parts * channels) * sizeof(float));
  const dim3 grid(static_cast<unsigned>((channels + kLayerColumns - 1) / kLayerColumns), static_cast<unsigned>(parts));
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((norm_columns<T>), grid, dim3(kLayerColumns, kLayerRows), 0, stream, x.as<T>(), mean.floats(),
                    rstd.floats(), y_grad.as<T>(), rows, channels, weights.as<float>(), biases.as<float>());
  });
  if (weight_grad)
    LOCKSTEP_LAUNCH(sum_norm_parts, blocks_for(channels), kThreads, 0, stream, weights.as<const float>(), parts,
                    channels, weight_grad.floats(), weight_grad.accumulate);
  if (bias_grad)
    LOCKSTEP_LAUNCH(sum_norm_parts, blocks_for(channels), kThreads, 0, stream, biases.as<const float>(), parts,
                    channels, bias_grad.floats(), bias_grad.accumulate);
}

void layer_norm_backward(In x, In weight, In mean, In rstd, In y_grad, Out x_grad, Out weight_grad, Out bias_grad,
                         Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (channels == 0) return;
  if (x_grad && rows > 0)
    with_float(x.dtype, [&]<typename T>(T*) {
      LOCKSTEP_LAUNCH((norm_rows_backward<T>), blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(),
                      weight.floats(), mean.floats(), rstd.floats(), y_grad.as<T>(), rows, channels, x_grad.as<T>(),
                      x_grad.accumulate);
    });
  if (weight_grad || bias_grad) parameter_gradients(x, mean, rstd, y_grad, weight_grad, bias_grad, stream);
}

}  // namespace

void use_layer_norm(KernelTable& table) {
  table.layer_norm = layer_norm;
  table.layer_norm_backward = layer_norm_backward;
}

}  // namespace lockstep::cuda
