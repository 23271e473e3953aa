// Unary functions and their derivatives, one vector loop each.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_normal.h"
#include "kernels/cpu/vector_power.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

namespace vm = vector_math;

constexpr float kInnerScale = 0.79788456080286536F;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715F;
constexpr float kDensityScale = 0.39894228040143268F;  // 1 / sqrt(2 pi)

// y = `value`, an expression of x and p, by one of the loops of prefetch.h.
#define LOCKSTEP_UNARY_LOOP_BY(loop, name, value)                                                         \
  LOCKSTEP_CPU_DISPATCH(void, name, (const float* in, [[maybe_unused]] float p, float* out, Index count), \
                        (in, p, out, count),                                                              \
                        {loop(i, count, (prefetch_chunk(in + i), prefetch_chunk<true>(out + i)), {        \
                          const float x = in[i];                                                          \
                          out[i] = value;                                                                 \
                        })})

// x_grad = or += y_grad * `slope`, an expression of p and x, which is the result if the derivative is computed from
// that.
#define LOCKSTEP_SLOPE_LOOP_BY(loop, name, slope)                                                                  \
  LOCKSTEP_CPU_DISPATCH(                                                                                           \
      void, name,                                                                                                  \
      (const float* saved, [[maybe_unused]] float p, const float* grad, float* out, Index count, bool accumulate), \
      (saved, p, grad, out, count, accumulate), {                                                                  \
        if (accumulate) {                                                                                          \
          loop(i, count, prefetch_slopes(saved + i, grad + i, out + i), {                                          \
            [[maybe_unused]] const float x = saved[i];                                                             \
            out[i] = out[i] + grad[i] * (slope);                                                                   \
          }) return;                                                                                               \
        }                                                                                                          \
        loop(i, count, prefetch_slopes(saved + i, grad + i, out + i), {                                            \
          [[maybe_unused]] const float x = saved[i];                                                               \
          out[i] = grad[i] * (slope);                                                                              \
        })                                                                                                         \
      })

#define LOCKSTEP_UNARY_LOOP(name, value) LOCKSTEP_UNARY_LOOP_BY(LOCKSTEP_CHUNKED_LOOP, name, value)
#define LOCKSTEP_CHEAP_UNARY_LOOP(name, value) LOCKSTEP_UNARY_LOOP_BY(LOCKSTEP_PLAIN_LOOP, name, value)
#define LOCKSTEP_SLOPE_LOOP(name, slope) LOCKSTEP_SLOPE_LOOP_BY(LOCKSTEP_CHUNKED_LOOP, name, slope)
#define LOCKSTEP_CHEAP_SLOPE_LOOP(name, slope) LOCKSTEP_SLOPE_LOOP_BY(LOCKSTEP_PLAIN_LOOP, name, slope)

LOCKSTEP_VECTOR_MATH void prefetch_slopes(const float* saved, const float* grad, const float* out) {
  prefetch_chunk(saved), prefetch_chunk(grad), prefetch_chunk<true>(out);
}

LOCKSTEP_VECTOR_MATH float gelu_slope(float x) {
  const vm::NormalDistribution normal = vm::normal_distribution(x);
  return vm::fma(x * kDensityScale, normal.gaussian, normal.cdf);
}
// (1 + tanh(u)) / 2 is the sigmoid of 2 u, which stays precise where tanh is near -1.
LOCKSTEP_VECTOR_MATH float gelu_tanh_share(float x) {
  return vm::sigmoid(2.0F * kInnerScale * vm::fma(kCubic * x * x, x, x));
}
// 2 u = x (a + b x^2); its derivative is a + 3 b x^2. Where the sigmoid is 0 or 1, so is the slope, because x^2 may
// overflow there. NaN stays NaN.
LOCKSTEP_VECTOR_MATH float gelu_tanh_slope(float x) {
  constexpr float kA = 2.0F * kInnerScale, kB = kA * kCubic;
  const float square = x * x, s = vm::sigmoid(x * vm::fma(kB, square, kA)), s_slope = s * (1.0F - s);
  const float factor = x * vm::fma(3.0F * kB, square, kA);
  return vm::fma(s_slope, s_slope == 0 ? 0.0F : factor, s);
}
LOCKSTEP_VECTOR_MATH float silu_slope(float x) {
  const float s = vm::sigmoid(x);
  return s * vm::fma(x, 1.0F - s, 1.0F);
}

LOCKSTEP_UNARY_LOOP(gelu, x* vm::normal_cdf(x))
LOCKSTEP_UNARY_LOOP(gelu_tanh, x* gelu_tanh_share(x))
LOCKSTEP_UNARY_LOOP(silu, x* vm::sigmoid(x))
LOCKSTEP_UNARY_LOOP(tanh_of, vm::tanh(x))
LOCKSTEP_UNARY_LOOP(sigmoid, vm::sigmoid(x))
LOCKSTEP_CHEAP_UNARY_LOOP(leaky_relu, x > 0 ? x : p * x)
LOCKSTEP_UNARY_LOOP(exp_of, vm::exp(x))
LOCKSTEP_UNARY_LOOP(log_of, vm::log(x))
LOCKSTEP_UNARY_LOOP(sqrt_of, __builtin_sqrtf(x))
LOCKSTEP_CHEAP_UNARY_LOOP(square, x* x)
LOCKSTEP_CHEAP_UNARY_LOOP(cube, x* x* x)
LOCKSTEP_CHEAP_UNARY_LOOP(abs_of, vm::abs(x))
LOCKSTEP_UNARY_LOOP(reciprocal, p / x)
LOCKSTEP_CHEAP_UNARY_LOOP(add_constant, x + p)

LOCKSTEP_SLOPE_LOOP(gelu_backward, gelu_slope(x))
LOCKSTEP_SLOPE_LOOP(gelu_tanh_backward, gelu_tanh_slope(x))
LOCKSTEP_SLOPE_LOOP(silu_backward, silu_slope(x))
LOCKSTEP_CHEAP_SLOPE_LOOP(tanh_backward, 1.0F - x * x)
LOCKSTEP_CHEAP_SLOPE_LOOP(sigmoid_backward, x*(1.0F - x))
LOCKSTEP_CHEAP_SLOPE_LOOP(leaky_relu_backward, x > 0 ? 1.0F : p)
LOCKSTEP_CHEAP_SLOPE_LOOP(exp_backward, x)
LOCKSTEP_CHEAP_SLOPE_LOOP(scaled_backward, p* x)
LOCKSTEP_SLOPE_LOOP(log_backward, 1.0F / x)
LOCKSTEP_SLOPE_LOOP(sqrt_backward, 0.5F / x)
LOCKSTEP_CHEAP_SLOPE_LOOP(square_backward, 2.0F * x)
LOCKSTEP_CHEAP_SLOPE_LOOP(cube_backward, 3.0F * x * x)
LOCKSTEP_CHEAP_SLOPE_LOOP(zero_backward, 0.0F)
LOCKSTEP_CHEAP_SLOPE_LOOP(abs_backward, x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F)
LOCKSTEP_SLOPE_LOOP(reciprocal_backward, -p / (x * x))
LOCKSTEP_CHEAP_SLOPE_LOOP(add_constant_backward, 1.0F)

LOCKSTEP_CPU_DISPATCH(void, power_loop, (const float* in, const vm::PowerRule& power, float* out, Index count),
                      (in, power, out, count), {
                        const vm::PowerRule rule = power;  // a local copy, which no store can change
                        LOCKSTEP_CHUNKED_LOOP(i, count, (prefetch_chunk(in + i), prefetch_chunk<true>(out + i)),
                                              out[i] = vm::power(in[i], rule);)
                      })

LOCKSTEP_CPU_DISPATCH(void, power_loop_of_normals,
                      (const float* in, const vm::PowerRule& power, float* out, Index count), (in, power, out, count), {
                        const float p = power.exponent, low = power.exponent_low;
                        LOCKSTEP_CHUNKED_LOOP(i, count, (prefetch_chunk(in + i), prefetch_chunk<true>(out + i)),
                                              out[i] = vm::power_of_normal(in[i], p, low);)
                      })

LOCKSTEP_CPU_DISPATCH(bool, are_normal, (const float* x, Index count), (x, count), {
  std::uint32_t last = 0;
  for (Index i = 0; i < count; ++i) last = std::max(last, vm::place_among_normals(x[i]));
  return last < vm::kNormals;
})

// Computes one tile at a time; most tiles contain no special values. The check has prefetched the tile into the cache
// before the second loop reads it.
void write_finite_powers(const float* in, const vm::PowerRule& rule, float* out, Index count) {
  constexpr Index kTile = kPrefetchAhead;
  for (Index i = 0; i < count; i += kTile) {
    const Index length = std::min(kTile, count - i);
    (are_normal(in + i, length) ? power_loop_of_normals : power_loop)(in + i, rule, out + i, length);
  }
}

void write_powers(const float* in, double p, float* out, Index count) {
  if (p == 0) {  // also for NaN
    std::fill_n(out, count, 1.0F);
    return;
  }
  if (std::isfinite(p)) return write_finite_powers(in, vm::power_rule(p), out, count);
  for (Index i = 0; i < count; ++i) out[i] = static_cast<float>(std::pow(static_cast<double>(in[i]), p));
}

void power(const float* in, float p, float* out, Index count) { write_powers(in, p, out, count); }

// Computes a tile of slopes at a time.
void power_backward(const float* saved, float p, const float* grad, float* out, Index count, bool accumulate) {
  constexpr Index kTile = 256;
  float powers[kTile];
  for (Index i = 0; i < count; i += kTile) {
    const Index length = std::min(kTile, count - i);
    write_powers(saved + i, double{p} - 1, powers, length);
    scaled_backward(powers, p, grad + i, out + i, length, accumulate);
  }
}

struct Loops {
  void (*value)(const float*, float, float*, Index);
  void (*slope)(const float*, float, const float*, float*, Index, bool);
};

Loops loops_of(const UnaryOperation& operation) {
  switch (operation.function) {
    case UnaryFunction::kGelu: return {gelu, gelu_backward};
    case UnaryFunction::kGeluTanh: return {gelu_tanh, gelu_tanh_backward};
    case UnaryFunction::kSilu: return {silu, silu_backward};
    case UnaryFunction::kTanh: return {tanh_of, tanh_backward};
    case UnaryFunction::kSigmoid: return {sigmoid, sigmoid_backward};
    case UnaryFunction::kLeakyReLU: return {leaky_relu, leaky_relu_backward};
    case UnaryFunction::kExp: return {exp_of, exp_backward};
    case UnaryFunction::kLog: return {log_of, log_backward};
    case UnaryFunction::kSqrt: return {sqrt_of, sqrt_backward};
    case UnaryFunction::kPow:
      if (operation.parameter == 2) return {square, square_backward};
      if (operation.parameter == 3) return {cube, cube_backward};
      if (operation.parameter == 0) return {power, zero_backward};
      return {power, power_backward};
    case UnaryFunction::kAbs: return {abs_of, abs_backward};
    case UnaryFunction::kReciprocal: return {reciprocal, reciprocal_backward};
    case UnaryFunction::kAddConstant: return {add_constant, add_constant_backward};
  }
  return {};
}

void unary(const UnaryOperation& operation, In x, Out y, Stream&) {
  loops_of(operation).value(x.floats(), operation.parameter, y.floats(), y.count());
}

void unary_backward(const UnaryOperation& operation, In saved, In y_grad, Out x_grad, Stream&) {
  loops_of(operation).slope(saved.floats(), operation.parameter, y_grad.floats(), x_grad.floats(), x_grad.count(),
                            x_grad.accumulate);
}

}  // namespace

void use_unary(KernelTable& table) {
  table.unary = any_float<unary>;
  table.unary_backward = any_float<unary_backward>;
}

}  // namespace lockstep::fast
