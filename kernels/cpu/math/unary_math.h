// The functions on which the CPU's vector loops compute the formulas of kernels/unary_functions.h.
#pragma once

#include "kernels/cpu/math/vector_math.h"
#include "kernels/cpu/math/vector_normal.h"
#include "kernels/cpu/math/vector_power.h"
#include "kernels/cpu/math/vector_sine.h"

namespace lockstep::fast {

namespace vm = vector_math;

struct VectorMath {
  using Number = float;
  LOCKSTEP_ALWAYS_INLINE static float exp(float x) { return vm::exp(x); }
  LOCKSTEP_ALWAYS_INLINE static float log(float x) { return vm::log(x); }
  LOCKSTEP_ALWAYS_INLINE static float sqrt(float x) { return __builtin_sqrtf(x); }
  LOCKSTEP_ALWAYS_INLINE static float tanh(float x) { return vm::tanh(x); }
  LOCKSTEP_ALWAYS_INLINE static float abs(float x) { return vm::abs(x); }
  LOCKSTEP_ALWAYS_INLINE static float sin(float x) { return vm::sin(x); }  // of moderate angles
  LOCKSTEP_ALWAYS_INLINE static float cos(float x) { return vm::cos(x); }
  LOCKSTEP_ALWAYS_INLINE static float erf(float x) { return vm::erf(x); }
  LOCKSTEP_ALWAYS_INLINE static float log1p(float x) { return vm::log1p(x); }
  LOCKSTEP_ALWAYS_INLINE static float expm1(float x) { return vm::expm1(x); }
  LOCKSTEP_ALWAYS_INLINE static float floor(float x) { return __builtin_floorf(x); }
  LOCKSTEP_ALWAYS_INLINE static float ceil(float x) { return __builtin_ceilf(x); }
  LOCKSTEP_ALWAYS_INLINE static float round(float x) { return __builtin_rintf(x); }
  LOCKSTEP_ALWAYS_INLINE static float power(float x, float exponent) { return vm::power(x, exponent); }
  LOCKSTEP_ALWAYS_INLINE static float logistic(float x) { return vm::sigmoid(x); }
  LOCKSTEP_ALWAYS_INLINE static float normal_cdf(float x) { return vm::normal_cdf(x); }
  LOCKSTEP_ALWAYS_INLINE static vm::NormalDistribution normal_distribution(float x) {
    return vm::normal_distribution(x);
  }
  LOCKSTEP_ALWAYS_INLINE static float fma(float a, float b, float c) { return vm::fma(a, b, c); }
};

}  // namespace lockstep::fast
