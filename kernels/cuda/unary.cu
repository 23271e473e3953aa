// Unary functions and their derivatives. They are limited by memory, so each load has 16 bytes where the pointers allow
// it. The function is selected once for each such pack.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#endif

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/element.cuh"
#include "kernels/unary_functions.h"

namespace lockstep::cuda {

namespace {

// CUDA's functions of floats.
struct FloatMath {
  using Number = float;
  LOCKSTEP_HOST_DEVICE static float exp(float x) { return expf(x); }
  LOCKSTEP_HOST_DEVICE static float log(float x) { return logf(x); }
  LOCKSTEP_HOST_DEVICE static float sqrt(float x) { return sqrtf(x); }
  LOCKSTEP_HOST_DEVICE static float tanh(float x) { return tanhf(x); }
  LOCKSTEP_HOST_DEVICE static float abs(float x) { return fabsf(x); }
  LOCKSTEP_HOST_DEVICE static float sin(float x) { return sinf(x); }
  LOCKSTEP_HOST_DEVICE static float cos(float x) { return cosf(x); }
  LOCKSTEP_HOST_DEVICE static float erf(float x) { return erff(x); }
  LOCKSTEP_HOST_DEVICE static float log1p(float x) { return log1pf(x); }
  LOCKSTEP_HOST_DEVICE static float expm1(float x) { return expm1f(x); }
  LOCKSTEP_HOST_DEVICE static float floor(float x) { return floorf(x); }
  LOCKSTEP_HOST_DEVICE static float ceil(float x) { return ceilf(x); }
  LOCKSTEP_HOST_DEVICE static float round(float x) { return rintf(x); }
  LOCKSTEP_HOST_DEVICE static float power(float x, float exponent) { return powf(x, exponent); }
  LOCKSTEP_HOST_DEVICE static float logistic(float x) { return 1.0F / (1.0F + expf(-x)); }
  LOCKSTEP_HOST_DEVICE static float normal_cdf(float x) { return 0.5F * erfcf(x * -0.70710678118654752F); }
  LOCKSTEP_HOST_DEVICE static NormalDistribution<float> normal_distribution(float x) {
    return {normal_cdf(x), expf(x * x * -0.5F)};
  }
  LOCKSTEP_HOST_DEVICE static float fma(float a, float b, float c) { return fmaf(a, b, c); }
};
using Formulas = UnaryFormulas<FloatMath>;

__device__ inline float value_at(const UnaryOperation& f, float x) {
  return Formulas::value(f.function, x, f.parameter, f.second);
}
__device__ inline float slope_at(const UnaryOperation& f, float saved) {
  return Formulas::slope(f.function, saved, f.parameter, f.second);
}

template <typename T, int count>
__global__ void unary_packs(UnaryOperation operation, const T* x, T* y, Index begin, Index packs) {
  for (Index i = first_item(); i < packs; i += stride_of_grid()) {
    const Index at = begin + i * count;
    const auto in = *reinterpret_cast<const Pack<T, count>*>(x + at);
    Pack<T, count> out;
#pragma unroll
    for (int j = 0; j < count; ++j) write(out.values[j], value_at(operation, widen(in.values[j])));
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
      store(out.values[j], widen(grad.values[j]) * slope_at(operation, widen(in.values[j])), accumulate);
    *reinterpret_cast<Pack<T, count>*>(x_grad + at) = out;
  }
}

template <typename T> constexpr int kOfUnary = 16 / sizeof(T);  // elements of a pack

}  // namespace

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

void use_unary(KernelTable& table) {
  table.unary = unary;
  table.unary_backward = unary_backward;
}

}  // namespace lockstep::cuda
