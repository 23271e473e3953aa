// Losses that are sums over elements, computed in two steps of fixed order, so they are reproducible bit for bit.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

constexpr Index kMostParts = 1024;

// Runs in one block: out = factor * sum of `values`.
__global__ void sum_all(const float* values, Index count, double factor, float* out) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += kThreads) sum += values[i];
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum * factor);
}

// The loss of one element, and its derivatives with respect to x and to the target.
struct SquaredError {
  __device__ static float value(float x, float t) { return (x - t) * (x - t); }
  __device__ static float by_x(float x, float t) { return 2 * (x - t); }
  __device__ static float by_target(float x, float t) { return 2 * (t - x); }
};
struct AbsoluteError {
  __device__ static float value(float x, float t) { return fabsf(x - t); }
  // 0 if equal, NaN for NaN.
  __device__ static float by_x(float x, float t) { return x > t ? 1.0F : x < t ? -1.0F : x - t; }
  __device__ static float by_target(float x, float t) { return by_x(t, x); }
};
struct BinaryCrossEntropy {
  __device__ static float value(float x, float t) { return (x < 0 ? 0 : x) - x * t + log1pf(expf(-fabsf(x))); }
  __device__ static float by_x(float x, float t) { return 1 / (1 + expf(-x)) - t; }
  __device__ static float by_target(float x, float) { return -x; }
};
struct HalfSquare {
  __device__ static float value(float x, float) { return x * x / 2; }
};

template <typename Loss> __global__ void sums_of_parts(const float* x, const float* target, Index count, float* sums) {
  float sum = 0;
  for (Index i = first_item(); i < count; i += stride_of_grid()) sum += Loss::value(x[i], target[i]);
  sum = sum_of_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A null gradient is not wanted.
template <typename Loss> __global__ void gradients(const float* x, const float* target, Index count, double scale,
                                                   const float* loss_grad, float* x_grad, bool accumulate_x,
                                                   float* target_grad, bool accumulate_target) {
  const auto factor = static_cast<float>(*loss_grad * scale);
  for (Index i = first_item(); i < count; i += stride_of_grid()) {
    const float from = x[i], to = target[i];
    if (x_grad != nullptr) store(x_grad[i], Loss::by_x(from, to) * factor, accumulate_x);
    if (target_grad != nullptr) store(target_grad[i], Loss::by_target(from, to) * factor, accumulate_target);
  }
}

double scale_of(Index count, bool mean) { return mean ? 1.0 / static_cast<double>(count) : 1.0; }

// loss = scale * sum of the elements' losses.
template <typename Loss> void sum_over_elements(In x, In target, double scale, Out loss, Stream& stream) {
  const Index parts = std::clamp<Index>(x.count() / (kThreads * 16), 1, kMostParts);
  const Scratch sums(stream, static_cast<std::size_t>(parts) * sizeof(float));
  LOCKSTEP_LAUNCH((sums_of_parts<Loss>), static_cast<unsigned>(parts), kThreads, 0, stream, x.floats(), target.floats(),
                  x.count(), sums.as<float>());
  LOCKSTEP_LAUNCH(sum_all, 1, kThreads, 0, stream, sums.as<const float>(), parts, scale, loss.floats());
}

template <typename Loss> void loss_of_elements(In x, In target, bool mean, Out loss, Stream& stream) {
  sum_over_elements<Loss>(x, target, scale_of(x.count(), mean), loss, stream);
}

template <typename Loss>
void gradients_of_elements(In x, In target, In loss_grad, bool mean, Out x_grad, Out target_grad, Stream& stream) {
  if (x.count() > 0)
    LOCKSTEP_LAUNCH((gradients<Loss>), blocks_for(x.count()), kThreads, 0, stream, x.floats(), target.floats(),
                    x.count(), scale_of(x.count(), mean), loss_grad.floats(), x_grad.floats(), x_grad.accumulate,
                    target_grad.floats(), target_grad.accumulate);
}

void l2_loss(In x, Out loss, Stream& stream) { sum_over_elements<HalfSquare>(x, x, 1, loss, stream); }

}  // namespace

void use_loss(KernelTable& table) {
  table.mse_loss = loss_of_elements<SquaredError>;
  table.mse_loss_backward = gradients_of_elements<SquaredError>;
  table.l1_loss = loss_of_elements<AbsoluteError>;
  table.l1_loss_backward = gradients_of_elements<AbsoluteError>;
  table.binary_cross_entropy_with_logits = loss_of_elements<BinaryCrossEntropy>;
  table.binary_cross_entropy_with_logits_backward = gradients_of_elements<BinaryCrossEntropy>;
  table.l2_loss = l2_loss;
}

}  // namespace lockstep::cuda
