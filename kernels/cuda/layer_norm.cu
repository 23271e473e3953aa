// Layer norm and RMS norm: one warp per row. A row of up to 1024 elements is read once, in packs, and stays in
// registers; other rows are read again for every step. Gradients of weight and bias are column sums.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_kernels.h"

namespace lockstep::cuda {

namespace {

constexpr int kRowPack = 4;

__device__ inline float weight_at(const float* weight, Index c) { return weight == nullptr ? 1.0F : weight[c]; }

// A weight or bias of the short rows; null: not wanted.
__device__ inline Pack<float, kRowPack> parameters_at(const float* parameters, Index c, float otherwise) {
  if (parameters != nullptr) return pack_at<kRowPack>(parameters + c);
  return {{otherwise, otherwise, otherwise, otherwise}};
}

// A lane's values of a row: packs lane, lane + 32, ...
template <int packs> struct LaneOfRow {
  float values[packs][kRowPack] = {};
};

template <int packs, typename Visit> __device__ void for_packs_of_lane(Index channels, Visit&& visit) {
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const Index c = (static_cast<Index>(threadIdx.x % 32) + p * 32) * kRowPack;
    if (c < channels) visit(p, c);
  }
}

template <int packs, typename T> __device__ void read_lane(const T* row, Index channels, LaneOfRow<packs>& lane) {
  for_packs_of_lane<packs>(channels, [&](int p, Index c) {
    const auto pack = pack_at<kRowPack>(row + c);
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) lane.values[p][k] = widen(pack.values[k]);
  });
}

// The addend of x before it is normalised, and the memory for the sum, rounded to T; null: nothing is added.
template <typename T> struct RowSum {
  const T* addend = nullptr;
  T* sum = nullptr;
};

template <int packs, typename T>
__device__ void add_lane(const RowSum<T>& adds, Index at, Index channels, LaneOfRow<packs>& lane) {
  for_packs_of_lane<packs>(channels, [&](int p, Index c) {
    const auto addend = pack_at<kRowPack>(adds.addend + at + c);
    Pack<T, kRowPack> sum;
#pragma unroll
    for (int k = 0; k < kRowPack; ++k) {
      write(sum.values[k], lane.values[p][k] + widen(addend.values[k]));
      lane.values[p][k] = widen(sum.values[k]);
    }
    pack_at<kRowPack>(adds.sum + at + c) = sum;
  });
}

// `means` null: RMS norm.
template <typename T, int packs> __global__ void norm_short_rows(const T* x, RowSum<T> adds, const float* weight,
                                                                 const float* bias, float epsilon, Index rows,
                                                                 Index channels, T* y, float* means, float* rstds) {
  const float share = 1.0F / static_cast<float>(channels);
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    LaneOfRow<packs> x_lane;
    read_lane(x + n * channels, channels, x_lane);
    if (adds.addend != nullptr) add_lane(adds, n * channels, channels, x_lane);
    float mean = 0, square = 0;
    if (means != nullptr) {
      for_packs_of_lane<packs>(channels, [&](int p, Index) {
#pragma unroll
        for (int k = 0; k < kRowPack; ++k) mean += x_lane.values[p][k];
      });
      mean = warp_sum(mean) * share;
    }
    for_packs_of_lane<packs>(channels, [&](int p, Index) {
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        x_lane.values[p][k] -= mean;
        square += x_lane.values[p][k] * x_lane.values[p][k];
      }
    });
    const float rstd = 1.0F / sqrtf(warp_sum(square) * share + epsilon);
    for_packs_of_lane<packs>(channels, [&](int p, Index c) {
      const auto weights = parameters_at(weight, c, 1), biases = parameters_at(bias, c, 0);
      Pack<T, kRowPack> result;
#pragma unroll
      for (int k = 0; k < kRowPack; ++k)
        write(result.values[k], x_lane.values[p][k] * rstd * weights.values[k] + biases.values[k]);
      pack_at<kRowPack>(y + n * channels + c) = result;
    });
    if (threadIdx.x % 32 == 0) {
      if (means != nullptr) means[n] = mean;
      rstds[n] = rstd;
    }
  }
}

template <typename T, int packs>
__global__ void norm_short_rows_backward(const T* x, const float* weight, const float* means, const float* rstds,
                                         const T* y_grad, Index rows, Index channels, T* x_grad, bool accumulate) {
  const float share = 1.0F / static_cast<float>(channels);
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const float mean = means == nullptr ? 0.0F : means[n], rstd = rstds[n];
    LaneOfRow<packs> normals, gradients;
    read_lane(x + n * channels, channels, normals);
    read_lane(y_grad + n * channels, channels, gradients);
    float sum = 0, product = 0;
    for_packs_of_lane<packs>(channels, [&](int p, Index c) {
      const auto weights = parameters_at(weight, c, 1);
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        normals.values[p][k] = (normals.values[p][k] - mean) * rstd;
        gradients.values[p][k] *= weights.values[k];
        sum += gradients.values[p][k];
        product += gradients.values[p][k] * normals.values[p][k];
      }
    });
    sum = means == nullptr ? 0.0F : warp_sum(sum) * share;
    product = warp_sum(product) * share;
    for_packs_of_lane<packs>(channels, [&](int p, Index c) {
      auto& to = pack_at<kRowPack>(x_grad + n * channels + c);
      Pack<T, kRowPack> result;
      if (accumulate) result = to;
#pragma unroll
      for (int k = 0; k < kRowPack; ++k)
        store(result.values[k], rstd * (gradients.values[p][k] - sum - normals.values[p][k] * product), accumulate);
      to = result;
    });
  }
}

template <typename T> __global__ void norm_rows(const T* x, RowSum<T> adds, const float* weight, const float* bias,
                                                float epsilon, Index rows, Index channels, T* y, float* means,
                                                float* rstds) {
  const int lane = threadIdx.x % 32;
  const float share = 1.0F / static_cast<float>(channels);
  for (Index n = first_row_of_warp(); n < rows; n += warps_of_grid()) {
    const T* row = x + n * channels;
    if (adds.addend != nullptr) {
      T* const sum = adds.sum + n * channels;  // a lane reads what it wrote itself
      for (Index c = lane; c < channels; c += 32) write(sum[c], widen(row[c]) + widen(adds.addend[n * channels + c]));
      row = sum;
    }
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

template <typename T, int pack> __global__ void norm_columns(const T* x, const float* means, const float* rstds,
                                                             const T* y_grad, Index rows, Index channels, float* sums) {
  sum_part_of_rows<2, pack>(rows, channels, sums, [&](Index row, Index column, float(&few)[2][pack]) {
    const float mean = means == nullptr ? 0.0F : means[row], rstd = rstds[row];
    const auto values = pack_at<pack>(x + row * channels + column),
               grads = pack_at<pack>(y_grad + row * channels + column);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float grad = widen(grads.values[k]);
      few[0][k] += grad * ((widen(values.values[k]) - mean) * rstd);
      few[1][k] += grad;
    }
  });
}

// Calls `call` with the number of packs of a lane: call.operator()<packs>(); 0: rows are not read in packs, or are too
// long.
template <typename Call> void with_packs_of_row(Index channels, bool aligned, Call&& call) {
  if (!aligned || channels % kRowPack != 0) return call.template operator()<0>();
  const Index packs = (channels / kRowPack + 31) / 32;
  if (packs <= 1) return call.template operator()<1>();
  if (packs <= 2) return call.template operator()<2>();
  if (packs <= 4) return call.template operator()<4>();
  if (packs <= 8) return call.template operator()<8>();
  call.template operator()<0>();
}

void normalise_rows(In x, In addend, Out sum, In weight, In bias, float epsilon, Out y, Out mean, Out rstd,
                    Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (rows == 0 || channels == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    const RowSum<T> adds{addend.as<T>(), sum.as<T>()};
    bool aligned =
        is_aligned_to_pack<float, kRowPack>(weight.floats()) && is_aligned_to_pack<float, kRowPack>(bias.floats());
    for (const T* const each :
         {x.as<T>(), static_cast<const T*>(y.as<T>()), adds.addend, static_cast<const T*>(adds.sum)})
      aligned = aligned && is_aligned_to_pack<T, kRowPack>(each);
    with_packs_of_row(channels, aligned, [&]<int packs>() {
      const auto kernel = [] {
        if constexpr (packs == 0)
          return norm_rows<T>;
        else
          return norm_short_rows<T, packs>;
      }();
      LOCKSTEP_LAUNCH(kernel, blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(), adds, weight.floats(),
                      bias.floats(), epsilon, rows, channels, y.as<T>(), mean.floats(), rstd.floats());
    });
  });
}

void layer_norm(In x, In weight, In bias, float epsilon, Out y, Out mean, Out rstd, Stream& stream) {
  normalise_rows(x, {}, {}, weight, bias, epsilon, y, mean, rstd, stream);
}

void add_layer_norm(In a, In b, In weight, In bias, float epsilon, Out sum, Out y, Out mean, Out rstd, Stream& stream) {
  normalise_rows(a, b, sum, weight, bias, epsilon, y, mean, rstd, stream);
}

void parameter_gradients(In x, In mean, In rstd, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  with_float(x.dtype, [&]<typename T>(T*) {
    const bool aligned =
        is_aligned_to_pack<T, kColumnPack>(x.as<T>()) && is_aligned_to_pack<T, kColumnPack>(y_grad.as<T>());
    with_column_pack(channels, aligned, [&]<int pack>() {
      const ColumnSums<float> sums(rows, channels, pack, 2, stream);
      LOCKSTEP_LAUNCH((norm_columns<T, pack>), sums.grid().blocks, sums.grid().threads, 0, stream, x.as<T>(),
                      mean.floats(), rstd.floats(), y_grad.as<T>(), rows, channels, sums.sums());
      sums.store<2>({{{weight_grad.floats(), weight_grad.accumulate}, {bias_grad.floats(), bias_grad.accumulate}}});
    });
  });
}

void layer_norm_backward(In x, In weight, In mean, In rstd, In y_grad, Out x_grad, Out weight_grad, Out bias_grad,
                         Stream& stream) {
  const Index rows = x.shape[0], channels = x.shape[1];
  if (channels == 0) return;
  if (x_grad && rows > 0)
    with_float(x.dtype, [&]<typename T>(T*) {
      const bool aligned =
          is_aligned_to_pack<T, kRowPack>(x.as<T>()) && is_aligned_to_pack<T, kRowPack>(y_grad.as<T>()) &&
          is_aligned_to_pack<T, kRowPack>(x_grad.as<T>()) && is_aligned_to_pack<float, kRowPack>(weight.floats());
      with_packs_of_row(channels, aligned, [&]<int packs>() {
        const auto kernel = [] {
          if constexpr (packs == 0)
            return norm_rows_backward<T>;
          else
            return norm_short_rows_backward<T, packs>;
        }();
        LOCKSTEP_LAUNCH(kernel, blocks_for(rows, kWarpsOfBlock), kThreads, 0, stream, x.as<T>(), weight.floats(),
                        mean.floats(), rstd.floats(), y_grad.as<T>(), rows, channels, x_grad.as<T>(),
                        x_grad.accumulate);
      });
    });
  if (weight_grad || bias_grad) parameter_gradients(x, mean, rstd, y_grad, weight_grad, bias_grad, stream);
}

}  // namespace

void use_layer_norm(KernelTable& table) {
  table.layer_norm = layer_norm;
  table.add_layer_norm = add_layer_norm;
  table.layer_norm_backward = layer_norm_backward;
}

}  // namespace lockstep::cuda
