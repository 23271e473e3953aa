// Batch normalisation, channels innermost. A thread computes the factors of its channels once and then walks over rows.
// Sums over the rows are shifted by the first row.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/families.h"

namespace lockstep::cuda {

namespace {

// The operands that determine y, per channel; weight and bias may be null.
struct NormOperands {
  float eps;
  bool relu;
  const float *mean, *variance, *weight, *bias;
};

// Values of one channel. Backward computes y again to see where ReLU clamped it. Its sign must be forward's, so every
// operation names its rounding: the compiler could contract them to fmaf() in one of the kernels and not in the other.
struct NormChannel {
  float mean, factor, bias;
  __device__ float centred(float x) const { return __fsub_rn(x, mean); }
  __device__ float result(float x) const { return __fadd_rn(__fmul_rn(centred(x), factor), bias); }
};
__device__ NormChannel channel_of(const NormOperands& of, Index c) {
  const float weight = of.weight == nullptr ? 1.0F : of.weight[c];
  return {of.mean[c], weight / sqrtf(__fadd_rn(of.variance[c], of.eps)), of.bias == nullptr ? 0.0F : of.bias[c]};
}

template <typename T, int pack> __global__ void statistics_parts(const T* x, Index rows, Index channels, double* sums) {
  const Index c = column_of_thread<pack>();
  float first[pack] = {};
  for (int k = 0; k < pack && c < channels; ++k) first[k] = widen(x[c + k]);
  sum_part_of_rows<2, pack>(rows, channels, sums, [&](Index row, Index column, float(&few)[2][pack]) {
    const auto values = pack_at<pack>(x + row * channels + column);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float value = widen(values.values[k]) - first[k];
      few[0][k] += value;
      few[1][k] += value * value;
    }
  });
}

template <typename T> __global__ void finish_statistics(const T* x, const double* sums, Index parts, Index rows,
                                                        Index channels, float* mean, float* variance) {
  for_columns_of_warps(channels, [&](Index first, Index c) {
    const double offset = sum_of_parts(sums, parts, channels, first) / static_cast<double>(rows);
    const double square = sum_of_parts(sums + parts * channels, parts, channels, first) / static_cast<double>(rows);
    const double spread = square - offset * offset;
    if (threadIdx.x % 32 != 0 || c >= channels) return;
    mean[c] = static_cast<float>(widen(x[c]) + offset);
    variance[c] = static_cast<float>(spread < 0 ? 0 : spread);
  });
}

template <typename T, int pack>
__global__ void batch_normalize(NormOperands of, const T* x, T* y, Index rows, Index channels) {
  const Index c = column_of_thread<pack>();
  if (c >= channels) return;
  NormChannel channel[pack];
#pragma unroll
  for (int k = 0; k < pack; ++k) channel[k] = channel_of(of, c + k);
  for (Index row = row_of_thread(); row < rows; row += rows_of_grid()) {
    const auto values = pack_at<pack>(x + row * channels + c);
    Pack<T, pack> result;
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float value = channel[k].result(widen(values.values[k]));
      write(result.values[k], of.relu && value < 0 ? 0.0F : value);
    }
    pack_at<pack>(y + row * channels + c) = result;
  }
}

// sums: of the gradients where ReLU passed them, and of their products with the centred x.
template <typename T, int pack>
__global__ void gradient_parts(NormOperands of, const T* x, const T* y_grad, Index rows, Index channels, double* sums) {
  const Index c = column_of_thread<pack>();
  NormChannel channel[pack] = {};
  for (int k = 0; k < pack && c < channels; ++k) channel[k] = channel_of(of, c + k);
  sum_part_of_rows<2, pack>(rows, channels, sums, [&](Index row, Index column, float(&few)[2][pack]) {
    const auto values = pack_at<pack>(x + row * channels + column),
               grads = pack_at<pack>(y_grad + row * channels + column);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float value = widen(values.values[k]), grad = widen(grads.values[k]);
      if (of.relu && !(channel[k].result(value) > 0)) continue;
      few[0][k] += grad;
      few[1][k] += grad * channel[k].centred(value);
    }
  });
}

// The part of x_grad that comes from mean and variance: mean_grads + (x - mean) * slopes, per channel.
struct StatisticsGradients {
  float *mean_grads, *slopes;
};

// `share`: 1 / rows, or 0 if mean and variance are constants.
__global__ void finish_gradients(NormOperands of, const double* sums, Index parts, double share, Index channels,
                                 StatisticsGradients statistics, ColumnGradient weight_grad, ColumnGradient bias_grad) {
  for_columns_of_warps(channels, [&](Index first, Index c) {
    const double sum = sum_of_parts(sums, parts, channels, first),
                 product = sum_of_parts(sums + parts * channels, parts, channels, first);
    if (threadIdx.x % 32 != 0 || c >= channels) return;
    const double inverse = 1 / sqrt(static_cast<double>(of.variance[c]) + of.eps);
    statistics.mean_grads[c] = static_cast<float>(sum * share);
    statistics.slopes[c] = static_cast<float>(product * share * inverse * inverse);
    if (weight_grad.data != nullptr)
      store(weight_grad.data[c], static_cast<float>(product * inverse), weight_grad.accumulate);
    if (bias_grad.data != nullptr) store(bias_grad.data[c], static_cast<float>(sum), bias_grad.accumulate);
  });
}

template <typename T, int pack> __global__ void batch_norm_gradients(NormOperands of, const T* x, const T* y_grad,
                                                                     StatisticsGradients statistics, T* x_grad,
                                                                     bool accumulate, Index rows, Index channels) {
  const Index c = column_of_thread<pack>();
  if (c >= channels) return;
  NormChannel channel[pack];
  float mean_grads[pack], slopes[pack];
#pragma unroll
  for (int k = 0; k < pack; ++k) {
    channel[k] = channel_of(of, c + k);
    mean_grads[k] = statistics.mean_grads[c + k];
    slopes[k] = statistics.slopes[c + k];
  }
  for (Index row = row_of_thread(); row < rows; row += rows_of_grid()) {
    const Index at = row * channels + c;
    const auto values = pack_at<pack>(x + at), grads = pack_at<pack>(y_grad + at);
    Pack<T, pack> result;
    if (accumulate) result = pack_at<pack>(x_grad + at);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float value = widen(values.values[k]);
      const float grad = of.relu && !(channel[k].result(value) > 0) ? 0.0F : widen(grads.values[k]);
      store(result.values[k], channel[k].factor * (grad - mean_grads[k] - channel[k].centred(value) * slopes[k]),
            accumulate);
    }
    pack_at<pack>(x_grad + at) = result;
  }
}

void batch_norm_statistics(In x, Out mean, Out variance, Stream& stream) {
  const Index channels = mean.count(), rows = channels == 0 ? 0 : x.count() / channels;
  if (rows == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    with_column_pack(channels, is_aligned_to_pack<T, kColumnPack>(x.as<T>()), [&]<int pack>() {
      const ColumnSums<double> sums(rows, channels, pack, 2, stream);
      LOCKSTEP_LAUNCH((statistics_parts<T, pack>), sums.grid().blocks, sums.grid().threads, 0, stream, x.as<T>(), rows,
                      channels, sums.sums());
      LOCKSTEP_LAUNCH((finish_statistics<T>), blocks_for(channels, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(),
                      sums.sums(), sums.parts(), rows, channels, mean.floats(), variance.floats());
    });
  });
}

NormOperands norm_operands(const BatchNormParams& params, In mean, In variance, In weight, In bias) {
  return {params.eps, params.relu, mean.floats(), variance.floats(), weight.floats(), bias.floats()};
}

void batch_norm(const BatchNormParams& params, In x, In mean, In variance, In weight, In bias, Out y, Stream& stream) {
  if (x.count() == 0) return;
  const Index channels = mean.count(), rows = x.count() / channels;
  with_float(x.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned_to_pack<T, kColumnPack>(x.as<T>()) && is_aligned_to_pack<T, kColumnPack>(y.as<T>());
    with_column_pack(channels, aligned, [&]<int pack>() {
      const ColumnGrid grid(rows, channels, pack);
      LOCKSTEP_LAUNCH((batch_normalize<T, pack>), grid.blocks, grid.threads, 0, stream,
                      norm_operands(params, mean, variance, weight, bias), x.as<T>(), y.as<T>(), rows, channels);
    });
  });
}

// The launches of backward for one type and pack.
template <typename T, int pack> void run_backward(const NormOperands& of, bool constant_statistics, In x, In y_grad,
                                                  Index rows, Index channels, Out x_grad, Out weight_grad,
                                                  Out bias_grad, Stream& stream) {
  const ColumnSums<double> sums(rows, channels, pack, 2, stream);
  const Scratch memory(stream, static_cast<std::size_t>(2 * channels) * sizeof(float));
  const StatisticsGradients statistics{memory.as<float>(), memory.as<float>() + channels};
  const double share = constant_statistics || rows == 0 ? 0 : 1 / static_cast<double>(rows);
  LOCKSTEP_LAUNCH((gradient_parts<T, pack>), sums.grid().blocks, sums.grid().threads, 0, stream, of, x.as<T>(),
                  y_grad.as<T>(), rows, channels, sums.sums());
  LOCKSTEP_LAUNCH(finish_gradients, blocks_for(channels, kWarpsOfBlock), kThreads, 0, stream, of, sums.sums(),
                  sums.parts(), share, channels, statistics,
                  ColumnGradient{weight_grad.floats(), weight_grad.accumulate},
                  ColumnGradient{bias_grad.floats(), bias_grad.accumulate});
  if (!x_grad || rows == 0) return;
  const ColumnGrid grid(rows, channels, pack);
  LOCKSTEP_LAUNCH((batch_norm_gradients<T, pack>), grid.blocks, grid.threads, 0, stream, of, x.as<T>(), y_grad.as<T>(),
                  statistics, x_grad.as<T>(), x_grad.accumulate, rows, channels);
}

void batch_norm_backward(const BatchNormParams& params, In x, In y_grad, In mean, In variance, In weight, In bias,
                         Out x_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const Index channels = mean.count(), rows = channels == 0 ? 0 : x.count() / channels;
  if (channels == 0) return;
  const NormOperands of = norm_operands(params, mean, variance, weight, bias);
  with_float(x.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned_to_pack<T, kColumnPack>(x.as<T>()) &&
                         is_aligned_to_pack<T, kColumnPack>(y_grad.as<T>()) &&
                         is_aligned_to_pack<T, kColumnPack>(x_grad.as<T>());
    with_column_pack(channels, aligned, [&]<int pack>() {
      run_backward<T, pack>(of, params.constant_statistics, x, y_grad, rows, channels, x_grad, weight_grad, bias_grad,
                            stream);
    });
  });
}

}  // namespace

void use_batch_norm(KernelTable& table) {
  table.batch_norm_statistics = batch_norm_statistics;
  table.batch_norm = batch_norm;
  table.batch_norm_backward = batch_norm_backward;
}

}  // namespace lockstep::cuda
