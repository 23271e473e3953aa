// Group norm: one block for each group of a sample. Gradients of weight and bias: one block per channel sums over
// samples and pixels in a fixed order without atomics, so results are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

struct GroupShape {
  Index samples, pixels, channels, groups;
  __device__ Index width() const { return channels / groups; }
  __device__ Index count() const { return pixels * width(); }  // elements of a group
  // The index of a group's element, and its channel.
  __device__ Index channel(Index group, Index i) const { return group % groups * width() + i % width(); }
  __device__ Index place(Index group, Index i) const {
    return (group / groups * pixels + i / width()) * channels + channel(group, i);
  }
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

template <typename T> __global__ void norm_groups(GroupShape s, const T* x, const float* weight, const float* bias,
                                                  float epsilon, T* y, float* means, float* rstds) {
  __shared__ float shared;
  const float share = 1.0F / static_cast<float>(s.count());
  for (Index group = blockIdx.x; group < s.samples * s.groups; group += gridDim.x) {
    float sum = 0, square = 0;
    for (Index i = threadIdx.x; i < s.count(); i += kThreads) sum += widen(x[s.place(group, i)]);
    const float mean = for_all_threads(sum_of_block<kThreads>(sum), &shared) * share;
    for (Index i = threadIdx.x; i < s.count(); i += kThreads) {
      const float centred = widen(x[s.place(group, i)]) - mean;
      square += centred * centred;
    }
    const float rstd = 1.0F / sqrtf(for_all_threads(sum_of_block<kThreads>(square), &shared) * share + epsilon);
    for (Index i = threadIdx.x; i < s.count(); i += kThreads) {
      const Index at = s.place(group, i), c = s.channel(group, i);
      write(y[at], (widen(x[at]) - mean) * rstd * group_weight(weight, c) + (bias == nullptr ? 0.0F : bias[c]));
    }
    if (threadIdx.x == 0) means[group] = mean, rstds[group] = rstd;
  }
}

template <typename T> __global__ void norm_groups_backward(GroupShape s, const T* x, const float* weight,
                                                           const float* means, const float* rstds, const T* y_grad,
                                                           T* x_grad, bool accumulate) {
  __shared__ float shared;
  const float share = 1.0F / static_cast<float>(s.count());
  for (Index group = blockIdx.x; group < s.samples * s.groups; group += gridDim.x) {
    const float mean = means[group], rstd = rstds[group];
    float sum = 0, product = 0;
    for (Index i = threadIdx.x; i < s.count(); i += kThreads) {
      const Index at = s.place(group, i);
      const float gradient = widen(y_grad[at]) * group_weight(weight, s.channel(group, i));
      sum += gradient;
      product += gradient * ((widen(x[at]) - mean) * rstd);
    }
    sum = for_all_threads(sum_of_block<kThreads>(sum), &shared) * share;
    product = for_all_threads(sum_of_block<kThreads>(product), &shared) * share;
    for (Index i = threadIdx.x; i < s.count(); i += kThreads) {
      const Index at = s.place(group, i);
      const float gradient = widen(y_grad[at]) * group_weight(weight, s.channel(group, i)),
                  normal = (widen(x[at]) - mean) * rstd;
      store(x_grad[at], rstd * (gradient - sum - normal * product), accumulate);
    }
  }
}

template <typename T> __global__ void group_norm_parameters(GroupShape s, const T* x, const float* means,
                                                            const float* rstds, const T* y_grad, float* weight_grad,
                                                            bool accumulate_weight, float* bias_grad,
                                                            bool accumulate_bias) {
  for (Index c = blockIdx.x; c < s.channels; c += gridDim.x) {
    float product = 0, sum = 0;
    for (Index i = threadIdx.x; i < s.samples * s.pixels; i += kThreads) {
      const Index group = i / s.pixels * s.groups + c / s.width();
      const float grad = widen(y_grad[i * s.channels + c]);
      product += grad * ((widen(x[i * s.channels + c]) - means[group]) * rstds[group]);
      sum += grad;
    }
    product = sum_of_block<kThreads>(product);
    sum = sum_of_block<kThreads>(sum);
    if (threadIdx.x != 0) continue;
    if (weight_grad != nullptr) store(weight_grad[c], product, accumulate_weight);
    if (bias_grad != nullptr) store(bias_grad[c], sum, accumulate_bias);
  }
}

void group_norm(Index groups, In x, In weight, In bias, float epsilon, Out y, Out mean, Out rstd, Stream& stream) {
  const GroupShape s{x.shape[0], x.shape[1], x.shape[2], groups};
  if (x.count() == 0) return;
  with_float(x.dtype, [&]<typename T>(T*) {
    LOCKSTEP_LAUNCH((norm_groups<T>), blocks_for(s.samples * s.groups, 1), kThreads, 0, stream, s, x.as<T>(),
                    weight.floats(), bias.floats(), epsilon, y.as<T>(), mean.floats(), rstd.floats());
  });
}

void group_norm_backward(Index groups, In x, In weight, In mean, In rstd, In y_grad, Out x_grad, Out weight_grad,
                         Out bias_grad, Stream& stream) {
  const GroupShape s{x.shape[0], x.shape[1], x.shape[2], groups};
  with_float(x.dtype, [&]<typename T>(T*) {
    if (x_grad && x.count() > 0)
      LOCKSTEP_LAUNCH((norm_groups_backward<T>), blocks_for(s.samples * s.groups, 1), kThreads, 0, stream, s, x.as<T>(),
                      weight.floats(), mean.floats(), rstd.floats(), y_grad.as<T>(), x_grad.as<T>(), x_grad.accumulate);
    if (weight_grad || bias_grad)
      LOCKSTEP_LAUNCH((group_norm_parameters<T>), blocks_for(s.channels, 1), kThreads, 0, stream, s, x.as<T>(),
                      mean.floats(), rstd.floats(), y_grad.as<T>(), weight_grad.floats(), weight_grad.accumulate,
                      bias_grad.floats(), bias_grad.accumulate);
  });
}

}  // namespace

void use_group_norm(KernelTable& table) {
  table.group_norm = group_norm;
  table.group_norm_backward = group_norm_backward;
}

}  // namespace lockstep::cuda
