// Unary functions and their derivatives, one vector loop each: the formulas of kernels/unary_functions.h on the
// functions of kernels/cpu/math.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/vector_math.h"
#include "kernels/cpu/math/vector_normal.h"
#include "kernels/cpu/math/vector_power.h"
#include "kernels/unary_functions.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

namespace vm = vector_math;

struct VectorMath {
  using Number = float;
  LOCKSTEP_ALWAYS_INLINE static float exp(float x) { return vm::exp(x); }
  LOCKSTEP_ALWAYS_INLINE static float log(float x) { return vm::log(x); }
  LOCKSTEP_ALWAYS_INLINE static float sqrt(float x) { return __builtin_sqrtf(x); }
  LOCKSTEP_ALWAYS_INLINE static float tanh(float x) { return vm::tanh(x); }
  LOCKSTEP_ALWAYS_INLINE static float abs(float x) { return vm::abs(x); }
  LOCKSTEP_ALWAYS_INLINE static float power(float x, float exponent) { return vm::power(x, exponent); }
  LOCKSTEP_ALWAYS_INLINE static float logistic(float x) { return vm::sigmoid(x); }
  LOCKSTEP_ALWAYS_INLINE static float normal_cdf(float x) { return vm::normal_cdf(x); }
  LOCKSTEP_ALWAYS_INLINE static vm::NormalDistribution normal_distribution(float x) {
    return vm::normal_distribution(x);
  }
  LOCKSTEP_ALWAYS_INLINE static float fma(float a, float b, float c) { return vm::fma(a, b, c); }
};
using Formulas = UnaryFormulas<VectorMath>;

// -- what a loop computes for each element

// A cheap loop is faster without prefetching (prefetch.h).
constexpr bool is_cheap_value(UnaryFunction function) {
  return function == UnaryFunction::kLeakyReLU || function == UnaryFunction::kAbs ||
         function == UnaryFunction::kAddConstant;
}

constexpr bool is_cheap_slope(UnaryFunction function) {
  return function == UnaryFunction::kTanh || function == UnaryFunction::kSigmoid || function == UnaryFunction::kExp ||
         is_cheap_value(function);
}

template <UnaryFunction function> struct Value {
  static constexpr bool kIsCheap = is_cheap_value(function);
  float p;
  LOCKSTEP_ALWAYS_INLINE float operator()(float x) const { return Formulas::value(function, x, p); }
};
template <UnaryFunction function> struct Slope {
  static constexpr bool kIsCheap = is_cheap_slope(function);
  float p;
  LOCKSTEP_ALWAYS_INLINE float operator()(float saved) const { return Formulas::slope(function, saved, p); }
};

// Powers whose exponent the compiler knows: products.
template <int exponent> struct ProductValue {
  static constexpr bool kIsCheap = true;
  LOCKSTEP_ALWAYS_INLINE float operator()(float x) const { return Formulas::value(UnaryFunction::kPow, x, exponent); }
};
template <int exponent> struct ProductSlope {
  static constexpr bool kIsCheap = true;
  LOCKSTEP_ALWAYS_INLINE float operator()(float x) const { return Formulas::slope(UnaryFunction::kPow, x, exponent); }
};

struct AnyPower {
  static constexpr bool kIsCheap = false;
  vm::PowerRule rule;
  LOCKSTEP_ALWAYS_INLINE float operator()(float x) const { return vm::power(x, rule); }
};
struct PowerOfNormal {
  static constexpr bool kIsCheap = false;
  float p, p_low;
  LOCKSTEP_ALWAYS_INLINE float operator()(float x) const { return vm::power_of_normal(x, p, p_low); }
};
// The slope of a power, from x^(p - 1).
struct SlopeOfPower {
  static constexpr bool kIsCheap = true;
  float p;
  LOCKSTEP_ALWAYS_INLINE float operator()(float power) const { return p * power; }
};

// -- the loops

// out = element(in)
template <typename Element> struct ValueLoop {
  static constexpr bool kIsCheap = Element::kIsCheap;
  Element element;
  const float* in;
  float* out;

  LOCKSTEP_ALWAYS_INLINE void prefetch(Index i) const { prefetch_chunk(in + i), prefetch_chunk<true>(out + i); }
  LOCKSTEP_ALWAYS_INLINE void run(Index begin, Index end) const {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = begin; i < end; ++i) out[i] = element(in[i]);
  }
};

// out = or += grad * element(saved)
template <typename Element, bool accumulate> struct SlopeLoop {
  static constexpr bool kIsCheap = Element::kIsCheap;
  Element element;
  const float *saved, *grad;
  float* out;

  LOCKSTEP_ALWAYS_INLINE void prefetch(Index i) const {
    prefetch_chunk(saved + i), prefetch_chunk(grad + i), prefetch_chunk<true>(out + i);
  }
  LOCKSTEP_ALWAYS_INLINE void run(Index begin, Index end) const {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index i = begin; i < end; ++i) {
      const float x_grad = grad[i] * element(saved[i]);
      out[i] = accumulate ? out[i] + x_grad : x_grad;
    }
  }
};

template <typename Loop> LOCKSTEP_ALWAYS_INLINE void run_all(const Loop& given, Index count) {
  const Loop loop = given;  // a local copy, which no store can change
  Index chunk = 0;
  if constexpr (!Loop::kIsCheap)
    for (; chunk + kChunk <= count; chunk += kChunk) {
      loop.prefetch(chunk);
      loop.run(chunk, chunk + kChunk);
    }
  loop.run(chunk, count);
}

// LOCKSTEP_CPU_DISPATCH for templates.
template <typename Loop> void run_baseline(const Loop& loop, Index count) { run_all(loop, count); }
#if defined(__x86_64__)
template <typename Loop> LOCKSTEP_TARGET_AVX2 void run_avx2(const Loop& loop, Index count) { run_all(loop, count); }
template <typename Loop> LOCKSTEP_TARGET_AVX512 void run_avx512(const Loop& loop, Index count) { run_all(loop, count); }
template <typename Loop> void run(const Loop& loop, Index count) {
  switch (cpu_isa()) {
    case Isa::kAmx:
    case Isa::kAvx512: return run_avx512(loop, count);
    case Isa::kAvx2: return run_avx2(loop, count);
    default: return run_baseline(loop, count);
  }
}
#else
template <typename Loop> void run(const Loop& loop, Index count) { run_baseline(loop, count); }
#endif

template <typename Element> void write_values(const Element& element, const float* in, float* out, Index count) {
  run(ValueLoop<Element>{element, in, out}, count);
}
template <typename Element> void write_slopes(const Element& element, const float* saved, const float* grad, float* out,
                                              Index count, bool accumulate) {
  accumulate ? run(SlopeLoop<Element, true>{element, saved, grad, out}, count)
             : run(SlopeLoop<Element, false>{element, saved, grad, out}, count);
}

// -- powers

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
    if (are_normal(in + i, length))
      write_values(PowerOfNormal{rule.exponent, rule.exponent_low}, in + i, out + i, length);
    else
      write_values(AnyPower{rule}, in + i, out + i, length);
  }
}

// p is a double, so that the exponent of a slope, p - 1, is exact.
void write_powers(const float* in, double p, float* out, Index count) {
  if (p == 0) {  // also for NaN
    std::fill_n(out, count, 1.0F);
    return;
  }
  if (std::isfinite(p)) return write_finite_powers(in, vm::power_rule(p), out, count);
  for (Index i = 0; i < count; ++i) out[i] = static_cast<float>(std::pow(static_cast<double>(in[i]), p));
}

// Computes a tile of slopes at a time.
void write_power_slopes(const float* saved, float p, const float* grad, float* out, Index count, bool accumulate) {
  constexpr Index kTile = 256;
  float powers[kTile];
  for (Index i = 0; i < count; i += kTile) {
    const Index length = std::min(kTile, count - i);
    write_powers(saved + i, double{p} - 1, powers, length);
    write_slopes(SlopeOfPower{p}, powers, grad + i, out + i, length, accumulate);
  }
}

// -- the kernels

template <UnaryFunction function> void value(const float* in, float p, float* out, Index count) {
  if constexpr (function == UnaryFunction::kPow)
    p == 2   ? write_values(ProductValue<2>{}, in, out, count)
    : p == 3 ? write_values(ProductValue<3>{}, in, out, count)
             : write_powers(in, p, out, count);
  else
    write_values(Value<function>{p}, in, out, count);
}

template <UnaryFunction function>
void slope(const float* saved, float p, const float* grad, float* out, Index count, bool accumulate) {
  if constexpr (function == UnaryFunction::kPow)
    p == 2   ? write_slopes(ProductSlope<2>{}, saved, grad, out, count, accumulate)
    : p == 3 ? write_slopes(ProductSlope<3>{}, saved, grad, out, count, accumulate)
    : p == 0 ? write_slopes(ProductSlope<0>{}, saved, grad, out, count, accumulate)
             : write_power_slopes(saved, p, grad, out, count, accumulate);
  else
    write_slopes(Slope<function>{p}, saved, grad, out, count, accumulate);
}

struct Loops {
  void (*value)(const float*, float, float*, Index);
  void (*slope)(const float*, float, const float*, float*, Index, bool);
};

constexpr auto kLoops = []<std::size_t... i>(std::index_sequence<i...>) {
  return std::array{Loops{value<kUnaryFunctions[i].function>, slope<kUnaryFunctions[i].function>}...};
}
(std::make_index_sequence<std::size(kUnaryFunctions)>());

const Loops& loops_of(UnaryFunction function) { return kLoops[static_cast<std::size_t>(function)]; }

void unary(const UnaryOperation& operation, In x, Out y, Stream&) {
  loops_of(operation.function).value(x.floats(), operation.parameter, y.floats(), y.count());
}

void unary_backward(const UnaryOperation& operation, In saved, In y_grad, Out x_grad, Stream&) {
  loops_of(operation.function)
      .slope(saved.floats(), operation.parameter, y_grad.floats(), x_grad.floats(), x_grad.count(), x_grad.accumulate);
}

}  // namespace

void use_unary(KernelTable& table) {
  table.unary = any_float<unary>;
  table.unary_backward = any_float<unary_backward>;
}

}  // namespace lockstep::fast
