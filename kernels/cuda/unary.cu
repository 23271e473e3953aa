// Unary functions and their derivatives. They are limited by memory, so each load has 16 bytes where the pointers allow
// it. The function is selected once for each such pack.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"

namespace lockstep::cuda {

namespace {

__device__ inline float gaussian(float x) { return expf(x * x * -0.5F); }
__device__ inline float normal_cdf(float x) { return 0.5F * erfcf(x * -0.70710678118654752F); }
__device__ inline float logistic(float x) { return 1.0F / (1.0F + expf(-x)); }
__device__ inline float gelu_tanh(float x) { return tanhf(0.79788456080286536F * (x + 0.044715F * x * x * x)); }

__device__ inline float power(float x, float p) {
  if (p == 2.0F) return x * x;
  if (p == 3.0F) return x * x * x;
  return powf(x, p);
}
__device__ inline float power_slope(float x, float p) {
  if (p == 2.0F) return 2.0F * x;
  if (p == 3.0F) return 3.0F * x * x;
  return p == 0.0F ? 0.0F : p * powf(x, p - 1.0F);
}

// The same formulas as in kernels/cpu/reference_unary.cpp.
__device__ inline float value_of(UnaryOperation operation, float x) {
  const float p = operation.parameter;
  switch (operation.function) {
    case UnaryFunction::kGelu: return x * normal_cdf(x);
    case UnaryFunction::kGeluTanh: return 0.5F * x * (1.0F + gelu_tanh(x));
    case UnaryFunction::kSilu: return x / (1.0F + expf(-x));
    case UnaryFunction::kTanh: return tanhf(x);
    case UnaryFunction::kSigmoid: return logistic(x);
    case UnaryFunction::kLeakyReLU: return x > 0 ? x : p * x;
    case UnaryFunction::kExp: return expf(x);
    case UnaryFunction::kLog: return logf(x);
    case UnaryFunction::kSqrt: return sqrtf(x);
    case UnaryFunction::kPow: return power(x, p);
    case UnaryFunction::kAbs: return fabsf(x);
    case UnaryFunction::kReciprocal: return p / x;
    case UnaryFunction::kAddConstant: return x + p;
  }
  return x;
}

__device__ inline float slope_of(UnaryOperation operation, float saved) {
  const float x = saved, y = saved, p = operation.parameter;
  switch (operation.function) {
    case UnaryFunction::kGelu: return normal_cdf(x) + x * 0.39894228040143268F * gaussian(x);
    case UnaryFunction::kGeluTanh: {
      const float t = gelu_tanh(x), t_slope = 1.0F - t * t, share = 0.5F * (1.0F + t);
      if (t_slope == 0.0F) return share;  // 0 or 1, because x^2 may overflow there
      return share + 0.5F * x * t_slope * (0.79788456080286536F * (1.0F + 3.0F * 0.044715F * x * x));
    }
    case UnaryFunction::kSilu: return logistic(x) * (1.0F + x * (1.0F - logistic(x)));
    case UnaryFunction::kTanh: return 1.0F - y * y;
    case UnaryFunction::kSigmoid: return y * (1.0F - y);
    case UnaryFunction::kLeakyReLU: return x > 0 ? 1.0F : p;
    case UnaryFunction::kExp: return y;
    case UnaryFunction::kLog: return 1.0F / x;
    case UnaryFunction::kSqrt: return 0.5F / y;
    case UnaryFunction::kPow: return power_slope(x, p);
    case UnaryFunction::kAbs: return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F;
    case UnaryFunction::kReciprocal: return -p / (x * x);
    case UnaryFunction::kAddConstant: return 1.0F;
  }
  return 1.0F;
}

template <typename T, int count>
__global__ void unary_packs(UnaryOperation operation, const T* x, T* y, Index begin, Index packs) {
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    const Index at = begin + i * count;
    const auto in = *reinterpret_cast<const Pack<T, count>*>(x + at);
    Pack<T, count> out;
#pragma unroll
    for (int j = 0; j < count; ++j) write(out.values[j], value_of(operation, widen(in.values[j])));
    *reinterpret_cast<Pack<T, count>*>(y + at) = out;
  }
}

// x_grad may be y_grad: the same thread reads each element before it writes it.
template <typename T, int count> __global__ void unary_backward_packs(UnaryOperation operation, const T* saved,
                                                                      const T* y_grad, T* x_grad, Index begin,
                                                                      Index packs, bool accumulate) {
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    const Index at = begin + i * count;
    const auto in = *reinterpret_cast<const Pack<T, count>*>(saved + at),
               grad = *reinterpret_cast<const Pack<T, count>*>(y_grad + at);
    Pack<T, count> out = accumulate ? *reinterpret_cast<const Pack<T, count>*>(x_grad + at) : grad;
#pragma unroll
    for (int j = 0; j < count; ++j)
      store(out.values[j], widen(grad.values[j]) * slope_of(operation, widen(in.values[j])), accumulate);
    *reinterpret_cast<Pack<T, count>*>(x_grad + at) = out;
  }
}

template <typename T> constexpr int kOfUnary = 16 / sizeof(T);  // elements of a pack

void unary(const UnaryOperation& operation, In x, Out y, Stream& stream) {
  const Index count = y.count();
  with_float(y.dtype, [&]<typename T>(T*) {
    constexpr int kOf = kOfUnary<T>;
    const T* const from = x.as<T>();
    T* const to = y.as<T>();
    const bool aligned = is_aligned_to_pack<T, kOf>(from) && is_aligned_to_pack<T, kOf>(to);
    const Index packs = aligned ? count / kOf : 0, done = packs * kOf;
    if (packs > 0)
      LOCKSTEP_LAUNCH((unary_packs<T, kOf>), blocks_for(packs), kThreads, 0, stream, operation, from, to, Index{0},
                      packs);
    if (done < count)
      LOCKSTEP_LAUNCH((unary_packs<T, 1>), blocks_for(count - done), kThreads, 0, stream, operation, from, to, done,
                      count - done);
  });
}

void unary_backward(const UnaryOperation& operation, In saved, In y_grad, Out x_grad, Stream& stream) {
  const Index count = x_grad.count();
  with_float(x_grad.dtype, [&]<typename T>(T*) {
    constexpr int kOf = kOfUnary<T>;
    const T *const at = saved.as<T>(), *const from = y_grad.as<T>();
    T* const to = x_grad.as<T>();
    const bool aligned =
        is_aligned_to_pack<T, kOf>(at) && is_aligned_to_pack<T, kOf>(from) && is_aligned_to_pack<T, kOf>(to);
    const Index packs = aligned ? count / kOf : 0, done = packs * kOf;
    if (packs > 0)
      LOCKSTEP_LAUNCH((unary_backward_packs<T, kOf>), blocks_for(packs), kThreads, 0, stream, operation, at, from, to,
                      Index{0}, packs, x_grad.accumulate);
    if (done < count)
      LOCKSTEP_LAUNCH((unary_backward_packs<T, 1>), blocks_for(count - done), kThreads, 0, stream, operation, at, from,
                      to, done, count - done, x_grad.accumulate);
  });
}

}  // namespace

void use_unary(KernelTable& table) {
  table.unary = unary;
  table.unary_backward = unary_backward;
}

}  // namespace lockstep::cuda
