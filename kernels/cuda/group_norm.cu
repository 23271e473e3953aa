// Group norm: one block for each group of a sample. Gradients of weight and bias are column sums over samples and
// pixels.
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fast_division.cuh"

namespace lockstep::cuda {

namespace {

// A thread visits items: packs of adjacent channels of one pixel.
template <typename Of, int pack> struct GroupShape {
  using Number = Of;

  GroupShape(Index samples, Index pixels, Index channels, Index groups)
      : samples(samples), pixels(pixels), channels(channels), groups(groups), width(channels / groups / pack) {}
  __device__ Index count() const { return pixels * width.value(); }  // items of a group
  __device__ float share() const { return 1.0F / static_cast<float>(count() * pack); }
  // Visits this thread's items of a group: visit(the item's first element, its first channel).
  template <typename Visit> __device__ void visit(Index group, Visit&& visit) const {
    const Index sample = group / groups, channel = (group - sample * groups) * width.value() * pack,
                begin = sample * pixels * channels + channel;
    for (Index i = threadIdx.x; i < count(); i += kThreads) {
      const Divided<Number> at = width.divide(static_cast<Number>(i));
      const Index offset = static_cast<Index>(at.remainder) * pack;
      visit(begin + at.quotient * channels + offset, channel + offset);
    }
  }
  Index samples, pixels, channels, groups;
  Divisor<Number> width;
};

__device__ inline float group_weight(const float* weight, Index c) { return weight == nullptr ? 1.0F : weight[c]; }

// Broadcasts the sum of thread 0 to all threads.
__device__ inline float for_all_threads(float sum, float* shared) {
  if (threadIdx.x == 0) *shared = sum;
  __syncthreads();
  const float value = *shared;
  __syncthreads();
  return value;
}

template <typename T, int pack, typename Shape> __global__ void norm_groups(Shape s, const T* x, const float* weight,
                                                                            const float* bias, float epsilon, T* y,
                                                                            float* means, float* rstds) {
  __shared__ float shared;
  for (Index group = blockIdx.x; group < s.samples * s.groups; group += gridDim.x) {
    float sum = 0, square = 0;
    s.visit(group, [&](Index at, Index) {
      const auto values = pack_at<pack>(x + at);
#pragma unroll
      for (int k = 0; k < pack; ++k) sum += widen(values.values[k]);
    });
    const float mean = for_all_threads(sum_of_block<kThreads>(sum), &shared) * s.share();
    s.visit(group, [&](Index at, Index) {
      const auto values = pack_at<pack>(x + at);
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        const float centred = widen(values.values[k]) - mean;
        square += centred * centred;
      }
    });
    const float rstd = 1.0F / sqrtf(for_all_threads(sum_of_block<kThreads>(square), &shared) * s.share() + epsilon);
    s.visit(group, [&](Index at, Index c) {
      const auto values = pack_at<pack>(x + at);
      Pack<T, pack> result;
#pragma unroll
      for (int k = 0; k < pack; ++k)
        write(result.values[k], (widen(values.values[k]) - mean) * rstd * group_weight(weight, c + k) +
                                    (bias == nullptr ? 0.0F : bias[c + k]));
      pack_at<pack>(y + at) = result;
    });
    if (threadIdx.x == 0) means[group] = mean, rstds[group] = rstd;
  }
}

template <typename T, int pack, typename Shape>
__global__ void norm_groups_backward(Shape s, const T* x, const float* weight, const float* means, const float* rstds,
                                     const T* y_grad, T* x_grad, bool accumulate) {
  __shared__ float shared;
  for (Index group = blockIdx.x; group < s.samples * s.groups; group += gridDim.x) {
    const float mean = means[group], rstd = rstds[group];
    float sum = 0, product = 0;
    s.visit(group, [&](Index at, Index c) {
      const auto values = pack_at<pack>(x + at), grads = pack_at<pack>(y_grad + at);
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        const float gradient = widen(grads.values[k]) * group_weight(weight, c + k);
        sum += gradient;
        product += gradient * ((widen(values.values[k]) - mean) * rstd);
      }
    });
    sum = for_all_threads(sum_of_block<kThreads>(sum), &shared) * s.share();
    product = for_all_threads(sum_of_block<kThreads>(product), &shared) * s.share();
    s.visit(group, [&](Index at, Index c) {
      const auto values = pack_at<pack>(x + at), grads = pack_at<pack>(y_grad + at);
      Pack<T, pack> result;
      if (accumulate) result = pack_at<pack>(x_grad + at);
#pragma unroll
      for (int k = 0; k < pack; ++k) {
        const float gradient = widen(grads.values[k]) * group_weight(weight, c + k),
                    normal = (widen(values.values[k]) - mean) * rstd;
        store(result.values[k], rstd * (gradient - sum - normal * product), accumulate);
      }
      pack_at<pack>(x_grad + at) = result;
    });
  }
}

// Rows are the pixels of all samples.
template <typename T, int pack, typename Number>
__global__ void group_norm_columns(const T* x, const float* means, const float* rstds, const T* y_grad, Index rows,
                                   Divisor<Number> pixels, Index groups, Index width, float* sums) {
  const Index columns = groups * width, first = column_of_thread<pack>();
  Index group[pack];  // of each column
  for (int k = 0; k < pack; ++k) group[k] = (first + k) / width;
  sum_part_of_rows<2, pack>(rows, columns, sums, [&](Index row, Index column, float(&few)[2][pack]) {
    const Index sample = static_cast<Index>(pixels.quotient(static_cast<Number>(row))) * groups;
    const auto values = pack_at<pack>(x + row * columns + column),
               grads = pack_at<pack>(y_grad + row * columns + column);
#pragma unroll
    for (int k = 0; k < pack; ++k) {
      const float grad = widen(grads.values[k]);
      few[0][k] += grad * ((widen(values.values[k]) - means[sample + group[k]]) * rstds[sample + group[k]]);
      few[1][k] += grad;
    }
  });
}

// Calls `call` with the pack and the GroupShape. Very large groups have items of one channel.
template <typename Call> void with_group_shape(const Shape& x, Index groups, bool aligned, Call&& call) {
  const Index samples = x[0], pixels = x[1], channels = x[2], width = channels / groups;
  if (pixels * width >= kShortIndices)
    call.template operator()<1>(GroupShape<Index, 1>(samples, pixels, channels, groups));
  else if (aligned && width % kColumnPack == 0)
    call.template operator()<kColumnPack>(GroupShape<ShortIndex, kColumnPack>(samples, pixels, channels, groups));
  else
    call.template operator()<1>(GroupShape<ShortIndex, 1>(samples, pixels, channels, groups));
}

void group_norm(Index groups, In x, In weight, In bias, float epsilon, Out y, Out mean, Out rstd, Stream& stream) {
  if (x.count() == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned_to_pack<T, kColumnPack>(x.as<T>()) && is_aligned_to_pack<T, kColumnPack>(y.as<T>());
    with_group_shape(x.shape, groups, aligned, [&]<int pack, typename Of>(const Of& s) {
      LOCKSTEP_LAUNCH((norm_groups<T, pack, Of>), blocks_for(s.samples * s.groups, 1), kThreads, 0, stream, s,
                      x.as<T>(), weight.floats(), bias.floats(), epsilon, y.as<T>(), mean.floats(), rstd.floats());
    });
  });
}

template <typename T> void group_parameter_gradients(Index groups, In x, In mean, In rstd, In y_grad, Out weight_grad,
                                                     Out bias_grad, Stream& stream) {
  const Index rows = x.shape[0] * x.shape[1], columns = x.shape[2];
  const bool aligned =
      is_aligned_to_pack<T, kColumnPack>(x.as<T>()) && is_aligned_to_pack<T, kColumnPack>(y_grad.as<T>());
  with_column_pack(columns, aligned, [&]<int pack>() {
    with_index_of(rows, [&]<typename Number>(Number) {
      const ColumnSums<float> sums(rows, columns, pack, 2, stream);
      LOCKSTEP_LAUNCH((group_norm_columns<T, pack, Number>), sums.grid().blocks, sums.grid().threads, 0, stream,
                      x.as<T>(), mean.floats(), rstd.floats(), y_grad.as<T>(), rows, Divisor<Number>(x.shape[1]),
                      groups, columns / groups, sums.sums());
      sums.store<2>({{{weight_grad.floats(), weight_grad.accumulate}, {bias_grad.floats(), bias_grad.accumulate}}});
    });
  });
}

void group_norm_backward(Index groups, In x, In weight, In mean, In rstd, In y_grad, Out x_grad, Out weight_grad,
                         Out bias_grad, Stream& stream) {
  if (x.shape[2] == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    const bool aligned = is_aligned_to_pack<T, kColumnPack>(x.as<T>()) &&
                         is_aligned_to_pack<T, kColumnPack>(y_grad.as<T>()) &&
                         is_aligned_to_pack<T, kColumnPack>(x_grad.as<T>());
    if (x_grad && x.count() > 0)
      with_group_shape(x.shape, groups, aligned, [&]<int pack, typename Of>(const Of& s) {
        LOCKSTEP_LAUNCH((norm_groups_backward<T, pack, Of>), blocks_for(s.samples * s.groups, 1), kThreads, 0, stream,
                        s, x.as<T>(), weight.floats(), mean.floats(), rstd.floats(), y_grad.as<T>(), x_grad.as<T>(),
                        x_grad.accumulate);
      });
    if (weight_grad || bias_grad)
      group_parameter_gradients<T>(groups, x, mean, rstd, y_grad, weight_grad, bias_grad, stream);
  });
}

}  // namespace

void use_group_norm(KernelTable& table) {
  table.group_norm = group_norm;
  table.group_norm_backward = group_norm_backward;
}

}  // namespace lockstep::cuda
