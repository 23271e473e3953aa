// Elementwise operators: arithmetic, bias, unary and binary functions, dropout.
#include <cmath>
#include <numbers>

#include "kernels/binary_functions.h"
#include "kernels/cpu/reference/reference.h"
#include "kernels/dropout_rule.h"
#include "kernels/strided_loop.h"
#include "kernels/unary_functions.h"

namespace lockstep::reference {

// -- arithmetic

namespace {

void fill(Out out, float value, Stream&) {
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = value;
}

void convert(In in, Out out, Stream&) {
  const Index count = in.count();
  const Buffer memory = cpu_device().allocate(static_cast<std::size_t>(count) * 2 * sizeof(float));
  auto* const values = reinterpret_cast<float*>(memory.data());
  widen(in.dtype, in.data, values, count);
  if (out.accumulate) {
    float* const before = values + count;
    widen(out.dtype, out.data, before, count);
    for (Index i = 0; i < count; ++i) values[i] += before[i];
  }
  narrow(out.dtype, values, out.data, count);
}

void add(In a, In b, Out out, Stream&) {
  const float *x = a.floats(), *y = b.floats();
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = x[i] + y[i];
}

void scale(In in, float factor, Out out, Stream&) {
  const float* const from = in.floats();
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = out.accumulate ? to[i] + from[i] * factor : from[i] * factor;
}

void scale_by(In in, In factor, Out out, Stream& stream) { scale(in, *factor.floats(), out, stream); }

void relu(In x, Out y, Stream&) {
  const float* const from = x.floats();
  float* const to = y.floats();
  for (Index i = 0; i < y.count(); ++i) to[i] = clamp_at_zero(from[i]);
}

void relu_backward(In y, Out grad, Stream&) {
  const float* const result = y.floats();
  float* const to = grad.floats();
  for (Index i = 0; i < grad.count(); ++i) to[i] = result[i] > 0 ? to[i] : 0;
}

}  // namespace

void use_elementwise(KernelTable& table) {
  table.fill = fill;
  table.convert = convert;
  table.add = any_float<add>;
  table.scale = any_float<scale>;
  table.scale_by = scale_by;
  table.relu = any_float<relu>;
  table.relu_backward = any_float<relu_backward>;
}

// -- bias: it is added to each row; its gradient is the sum over the rows

namespace {

void add_bias(Out y, In bias, Stream&) {
  float* const to = y.floats();
  const float* const offsets = bias.floats();
  for (Index i = 0; i < y.count(); ++i) to[i] += offsets[i % bias.count()];
}

}  // namespace

void bias_backward(In y_grad, Out bias_grad, Stream&) {
  const float* const grad = y_grad.floats();
  const Index channels = bias_grad.count();
  for (Index c = 0; c < channels; ++c) {
    double sum = 0;
    for (Index i = c; i < y_grad.count(); i += channels) sum += grad[i];
    store(bias_grad.floats()[c], sum, bias_grad.accumulate);
  }
}

void use_bias(KernelTable& table) {
  table.bias = any_float<add_bias>;
  table.bias_backward = any_float<bias_backward>;
}

// -- unary functions, in double

namespace {

struct DoubleMath {
  using Number = double;
  static double exp(double x) { return std::exp(x); }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double tanh(double x) { return std::tanh(x); }
  static double abs(double x) { return std::abs(x); }
  static double sin(double x) { return std::sin(x); }
  static double cos(double x) { return std::cos(x); }
  static double erf(double x) { return std::erf(x); }
  static double log1p(double x) { return std::log1p(x); }
  static double expm1(double x) { return std::expm1(x); }
  static double floor(double x) { return std::floor(x); }
  static double ceil(double x) { return std::ceil(x); }
  static double round(double x) { return std::nearbyint(x); }
  static double power(double x, double exponent) { return std::pow(x, exponent); }
  static double logistic(double x) { return 1 / (1 + std::exp(-x)); }
  static double normal_cdf(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
  static NormalDistribution<double> normal_distribution(double x) { return {normal_cdf(x), std::exp(-x * x / 2)}; }
  static double fma(double a, double b, double c) { return a * b + c; }
};

void unary(const UnaryOperation& operation, In x, Out y, Stream&) {
  const float* const from = x.floats();
  float* const to = y.floats();
  for (Index i = 0; i < y.count(); ++i)
    to[i] = static_cast<float>(
        UnaryFormulas<DoubleMath>::value(operation.function, from[i], operation.parameter, operation.second));
}

void unary_backward(const UnaryOperation& operation, In saved, In y_grad, Out x_grad, Stream&) {
  const float *const at = saved.floats(), *const from = y_grad.floats();
  float* const to = x_grad.floats();
  for (Index i = 0; i < x_grad.count(); ++i)
    store(to[i],
          from[i] * UnaryFormulas<DoubleMath>::slope(operation.function, at[i], operation.parameter, operation.second),
          x_grad.accumulate);
}

}  // namespace

void use_unary(KernelTable& table) {
  table.unary = any_float<unary>;
  table.unary_backward = any_float<unary_backward>;
}

// -- binary functions, comparisons and selection, with broadcasting

namespace {

StridedLoop<2> loop_over(In a, In b, const Shape& out) {
  return {out, {broadcast_strides(a.shape, out), broadcast_strides(b.shape, out)}};
}

void binary(BinaryFunction function, In a, In b, Out out, Stream&) {
  const float *const x = a.floats(), *const y = b.floats();
  float* to = out.floats();
  for_each_outer(loop_over(a, b, out.shape), 0,
                 [&](const auto& at) { *to++ = value_of(function, x[at[0]], y[at[1]]); });
}

void compare(Comparison comparison, In a, In b, Out mask, Stream&) {
  const float *const x = a.floats(), *const y = b.floats();
  auto* to = mask.as<std::uint8_t>();
  for_each_outer(loop_over(a, b, mask.shape), 0,
                 [&](const auto& at) { *to++ = holds(comparison, x[at[0]], y[at[1]]) ? 1 : 0; });
}

void where(In condition, In a, In b, Out out, Stream&) {
  const auto* const chosen = static_cast<const std::uint8_t*>(condition.data);
  const float *const x = a.floats(), *const y = b.floats();
  float* to = out.floats();
  const StridedLoop<3> loop(out.shape, {broadcast_strides(condition.shape, out.shape),
                                        broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)});
  for_each_outer(loop, 0, [&](const auto& at) { *to++ = chosen[at[0]] != 0 ? x[at[1]] : y[at[2]]; });
}

}  // namespace

void use_binary(KernelTable& table) {
  table.binary = any_float<binary>;
  table.compare = any_float<compare>;
  table.where = any_float<where>;
}

// -- dropout (Srivastava et al. 2014): kept elements are scaled so that the expectation does not change

namespace {

void dropout(const DropoutParams& params, In x, Out y, Stream&) {
  const DropoutRule rule = dropout_rule(params);
  const DropoutRows rows = dropout_rows(params, x.count());
  for (Index i = 0; i < x.count(); ++i) {
    const auto element =
        static_cast<std::uint64_t>(params.first_element + i / rows.elements * rows.numbers + i % rows.elements);
    const std::uint32_t word = philox_block(params.seed, params.stream, element / 4).words[element % 4];
    store(y.floats()[i], word >= rule.threshold ? x.floats()[i] * rule.factor : 0.0F, y.accumulate);
  }
}

}  // namespace

void use_dropout(KernelTable& table) { table.dropout = any_float<dropout>; }

}  // namespace lockstep::reference
