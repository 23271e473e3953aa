// Batch normalisation, channels innermost. Sums over the rows take two steps of fixed order without atomics, so they
// are reproducible bit for bit: blocks sum their rows in double, shifted by the first row, then one thread per channel
// adds the blocks' sums.
#include "kernels/cuda/element.cuh"
#include "kernels/families.h"

namespace lockstep::cuda {

namespace {

constexpr int kNormChannels = 32;  // channels per block: a warp reads a row of them
constexpr int kNormRows = 8;       // threads per block that share a channel
constexpr Index kMostNormParts = 256;

// Values of one channel.
struct NormChannel {
  float mean, factor, bias;
  __device__ float centered(float x) const { return x - mean; }
  __device__ float result(float x) const { return __fadd_rn(__fmul_rn(centered(x), factor), bias); }
};

__device__ double inverse_of(const BatchNormParams& params, float variance) {
  return 1 / sqrt(static_cast<double>(variance) + params.eps);
}
__device__ NormChannel channel_of(const BatchNormParams& params, Index c, const float* mean, const float* variance,
                                  const float* weight, const float* bias) {
  const double factor = inverse_of(params, variance[c]) * (weight == nullptr ? 1.0F : weight[c]);
  return {mean[c], static_cast<float>(factor), bias == nullptr ? 0.0F : bias[c]};
}

// Two sums per channel over this block's rows: first[part * channels + c], and likewise second. term(value index, c,
// &first, &second) adds one element.
template <typename Term>
__device__ void sum_rows(Index rows, Index channels, double* first, double* second, Term&& term) {
  __shared__ double shared[2][kNormRows][kNormChannels];
  const Index c = static_cast<Index>(blockIdx.x) * kNormChannels + threadIdx.x;
  double sums[2] = {0, 0};
  if (c < channels)
    for (Index row = static_cast<Index>(blockIdx.y) * kNormRows + threadIdx.y; row < rows;
         row += static_cast<Index>(gridDim.y) * kNormRows)
      term(row * channels + c, c, sums[0], sums[1]);
  shared[0][threadIdx.y][threadIdx.x] = sums[0];
  shared[1][threadIdx.y][threadIdx.x] = sums[1];
  __syncthreads();
  if (threadIdx.y != 0 || c >= channels) return;
  for (int row = 1; row < kNormRows; ++row) {
    sums[0] += shared[0][row][threadIdx.x];
    sums[1] += shared[1][row][threadIdx.x];
  }
  first[blockIdx.y * channels + c] = sums[0];
  second[blockIdx.y * channels + c] = sums[1];
}

template <typename T>
__global__ void statistics_parts(const T* x, Index rows, Index channels, double* sums, double* squares) {
  sum_rows(rows, channels, sums, squares, [&](Index i, Index c, double& sum, double& square) {
    const double value = static_cast<double>(widen(x[i])) - widen(x[c]);
    sum += value;
    square += value * value;
  });
}

__device__ double sum_of_parts(const double* sums, Index parts, Index channels, Index c) {
  double sum = 0;
  for (Index part = 0; part < parts; ++part) sum += sums[part * channels + c];
  return sum;
}

template <typename T> __global__ void finish_statistics(const T* x, const double* sums, const double* squares,
                                                        Index parts, Index rows, Index channels, float* mean,
                                                        float* variance) {
  for (Index c = first_item(); c < channels; c += stride_of_grid()) {
    const double offset = sum_of_parts(sums, parts, channels, c) / static_cast<double>(rows);
    const double spread = sum_of_parts(squares, parts, channels, c) / static_cast<double>(rows) - offset * offset;
    mean[c] = static_cast<float>(widen(x[c]) + offset);
    variance[c] = static_cast<float>(spread < 0 ? 0 : spread);
  }
}

template <typename T> __global__ void batch_normalize(BatchNormParams params, const T* x, const float* mean,
                                                      const float* variance, const float* weight, const float* bias,
                                                      T* y, Index count, Index channels) {
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const float value = channel_of(params, i % channels, mean, variance, weight, bias).result(widen(x[i]));
    write(y[i], params.relu && value < 0 ? 0.0F : value);
  }
}

template <typename T> __global__ void gradient_parts(BatchNormParams params, const T* x, const T* y_grad,
                                                     const float* mean, const float* variance, const float* weight,
                                                     const float* bias, Index rows, Index channels, double* sums,
                                                     double* products) {
  sum_rows(rows, channels, sums, products, [&](Index i, Index c, double& sum, double& product) {
    const NormChannel channel = channel_of(params, c, mean, variance, weight, bias);
    const float value = widen(x[i]);
    if (params.relu && !(channel.result(value) > 0)) return;
    sum += widen(y_grad[i]);
    product += static_cast<double>(widen(y_grad[i])) * channel.centered(value);
  });
}

// Reads the sums over all rows, and the gradients of weight and bias (null: not wanted).
__global__ void finish_gradients(BatchNormParams params, const double* sums, const double* products, Index parts,
                                 Index channels, const float* variance, double* totals, float* weight_grad,
                                 bool accumulate_weight, float* bias_grad, bool accumulate_bias) {
  for (Index c = first_item(); c < channels; c += stride_of_grid()) {
    const double sum = sum_of_parts(sums, parts, channels, c), product = sum_of_parts(products, parts, channels, c);
    totals[c] = sum;
    totals[channels + c] = product;
    if (weight_grad != nullptr)
      store(weight_grad[c], static_cast<float>(product * inverse_of(params, variance[c])), accumulate_weight);
    if (bias_grad != nullptr) store(bias_grad[c], static_cast<float>(sum), accumulate_bias);
  }
}

template <typename T> __global__ void batch_norm_gradients(BatchNormParams params, const T* x, const T* y_grad,
                                                           const float* mean, const float* variance,
                                                           const float* weight, const float* bias, const double* totals,
                                                           T* x_grad, bool accumulate, Index rows, Index channels) {
  const double share = params.constant_statistics ? 0 : 1 / static_cast<double>(rows);
  for (Index i = first_item(); i < rows * channels; i += stride_of_grid()) {
    const Index c = i % channels;
    const NormChannel channel = channel_of(params, c, mean, variance, weight, bias);
    const double inverse = inverse_of(params, variance[c]);
    const float value = widen(x[i]);
    const float grad = params.relu && !(channel.result(value) > 0) ? 0.0F : widen(y_grad[i]);
    const auto mean_grad = static_cast<float>(totals[c] * share);
    const auto slope = static_cast<float>(totals[channels + c] * share * inverse * inverse);
    store(x_grad[i], channel.factor * (grad - mean_grad - channel.centered(value) * slope), accumulate);
  }
}

// The blocks of the sums over rows, and their memory: two arrays of parts x channels doubles, and two totals per
// channel.
struct NormSums {
  NormSums(Index rows, Index channels, Stream& stream)
      : parts(std::clamp<Index>(rows / (kNormRows * 8), 1, kMostNormParts)),
        channels(channels),
        memory(stream, static_cast<std::size_t>((parts + 1) * channels * 2) * sizeof(double)) {}
  dim3 grid() const {
    return dim3(static_cast<unsigned>((channels + kNormChannels - 1) / kNormChannels), static_cast<unsigned>(parts));
  }
  double* first() const { return memory.as<double>(); }
  double* second() const { return first() + parts * channels; }
  double* totals() const { return second() + parts * channels; }
  Index parts, channels;
  Scratch memory;
};

void batch_norm_statistics(In x, Out mean, Out variance, Stream& stream) {
  const Index channels = mean.count(), rows = channels == 0 ? 0 : x.count() / channels;
  if (rows == 0) return;
  const NormSums sums(rows, channels, stream);
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((statistics_parts<T>), sums.grid(), dim3(kNormChannels, kNormRows), 0, stream, x.as<T>(), rows,
                    channels, sums.first(), sums.second());
    LOCKSTEP_LAUNCH((finish_statistics<T>), blocks_for(channels), kThreads, 0, stream, x.as<T>(), sums.first(),
                    sums.second(), sums.parts, rows, channels, mean.floats(), variance.floats());
  });
}

void batch_norm(const BatchNormParams& params, In x, In mean, In variance, In weight, In bias, Out y, Stream& stream) {
  const Index count = x.count();
  if (count == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((batch_normalize<T>), blocks_for(count), kThreads, 0, stream, params, x.as<T>(), mean.floats(),
                    variance.floats(), weight.floats(), bias.floats(), y.as<T>(), count, mean.count());
  });
}

void batch_norm_backward(const BatchNormParams& params, In x, In y_grad, In mean, In variance, In weight, In bias,
                         Out x_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const Index channels = mean.count(), rows = channels == 0 ? 0 : x.count() / channels;
  if (channels == 0) return;
  const NormSums sums(rows, channels, stream);
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((gradient_parts<T>), sums.grid(), dim3(kNormChannels, kNormRows), 0, stream, params, x.as<T>(),
                    y_grad.as<T>(), mean.floats(), variance.floats(), weight.floats(), bias.floats(), rows, channels,
                    sums.first(), sums.second());
    LOCKSTEP_LAUNCH(finish_gradients, blocks_for(channels), kThreads, 0, stream, params, sums.first(), sums.second(),
                    sums.parts, channels, variance.floats(), sums.totals(), weight_grad.floats(),
                    weight_grad.accumulate, bias_grad.floats(), bias_grad.accumulate);
    if (x_grad && rows > 0)
      LOCKSTEP_LAUNCH((batch_norm_gradients<T>), blocks_for(rows * channels), kThreads, 0, stream, params, x.as<T>(),
                      y_grad.as<T>(), mean.floats(), variance.floats(), weight.floats(), bias.floats(), sums.totals(),
                      x_grad.as<T>(), x_grad.accumulate, rows, channels);
  });
}

}  // namespace

void use_batch_norm(KernelTable& table) {
  table.batch_norm_statistics = batch_norm_statistics;
  table.batch_norm = batch_norm;
  table.batch_norm_backward = batch_norm_backward;
}

}  // namespace lockstep::cuda
