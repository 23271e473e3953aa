#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/engine/trace.h"
#include "src/autograd/engine/variable_state.h"
#include "src/autograd/math/dimensions.h"
#include "src/autograd/math/recorded_sum.h"

namespace lockstep {

namespace {

constexpr const char* binary_name(BinaryFunction function) {
  constexpr const char* kNames[] = {"add", "sub", "mul", "div", "pow", "pow", "pow", "maximum", "minimum", "maximum"};
  return kNames[static_cast<int>(function)];
}

Tensor compute(BinaryFunction function, const Tensor& a, const Tensor& b) {
  const Tensor y = empty_like(a, broadcast_shape(binary_name(function), a.shape(), b.shape(), a, b));
  kernels_of(a).binary(function, a, b, y, stream_of(a));
  return y;
}

// Gives `factor` times `gradient`, summed over the dimensions in which the input was repeated.
void give_sum(const GradTarget& target, const Tensor& gradient, const Shape& shape, float factor = 1) {
  if (!target) return;
  const KernelTable& kernels = kernels_of(gradient);
  if (gradient.count() != shape.count())
    kernels.sum(gradient, factor, target, stream_of(gradient));
  else if (factor == 1)
    target.give(gradient);
  else
    kernels.scale(gradient, factor, target, stream_of(gradient));
}

// a + sign * b. Saves nothing.
class SumNode : public Node {
 public:
  SumNode(std::vector<Tensor> inputs, float sign)
      : Node(std::move(inputs)), sign_(sign), a_(input(0).shape()), b_(input(1).shape()) {}
  const char* name() const override { return sign_ == 1 ? "add" : "sub"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    // If the first input takes the gradient's memory, the second one must not take it, too.
    const bool same_counts = a_.count() == result_grad.count() && b_.count() == result_grad.count();
    const bool shared = same_counts && targets[0].takes() && sign_ == 1 && targets[1].takes();
    give_sum(targets[0], shared ? result_grad.clone() : result_grad, a_);
    give_sum(targets[1], result_grad, b_, sign_);
  }

 private:
  float sign_;
  Shape a_, b_;
};

// Saved: a, b.
class MulNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "mul"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (targets[0]) give_sum(targets[0], compute(BinaryFunction::kMul, result_grad, saved(1)), saved(0).shape());
    if (targets[1]) give_sum(targets[1], compute(BinaryFunction::kMul, result_grad, saved(0)), saved(1).shape());
  }
};

// Saved: b, the result. With y = a / b: a_grad = y_grad / b, b_grad = -(y_grad / b) y.
class DivNode : public Node {
 public:
  DivNode(std::vector<Tensor> inputs, std::vector<Tensor> saved)
      : Node(std::move(inputs), std::move(saved)), a_(input(0).shape()) {}
  const char* name() const override { return "div"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Tensor quotient = compute(BinaryFunction::kDiv, result_grad, saved(0));
    const Tensor product = targets[1] ? compute(BinaryFunction::kMul, quotient, saved(1)) : Tensor();
    give_sum(targets[0], quotient, a_);
    if (targets[1]) give_sum(targets[1], product, saved(0).shape(), -1);
  }

 private:
  Shape a_;
};

// Saved: base, exponent.
class PowNode : public Node {
 public:
  using Node::Node;
  const char* name() const override { return "pow"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (targets[0]) give_sum(targets[0], times_slope(result_grad, BinaryFunction::kPowBaseSlope), saved(0).shape());
    if (targets[1]) give_sum(targets[1], times_slope(result_grad, BinaryFunction::kPowExponentSlope), saved(1).shape());
  }

 private:
  Tensor times_slope(const Tensor& result_grad, BinaryFunction derivative) const {
    const Tensor slope = compute(derivative, saved(0), saved(1));
    kernels_of(slope).binary(BinaryFunction::kMul, result_grad, slope, slope, stream_of(slope));
    return slope;
  }
};

// Saved: a, b. The minimum's derivative with respect to one operand is the maximum's with respect to the other.
class ExtremeNode : public Node {
 public:
  ExtremeNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, bool is_maximum)
      : Node(std::move(inputs), std::move(saved)), is_maximum_(is_maximum) {}
  const char* name() const override { return is_maximum_ ? "maximum" : "minimum"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    for (const std::size_t input : {0, 1})
      if (targets[input])
        give_sum(targets[input], times_slope(result_grad, is_maximum_ == (input == 0)), saved(input).shape());
  }

 private:
  Tensor times_slope(const Tensor& result_grad, bool of_first) const {
    const Tensor slope = compute(BinaryFunction::kMaximumSlope, saved(of_first ? 0 : 1), saved(of_first ? 1 : 0));
    kernels_of(slope).binary(BinaryFunction::kMul, result_grad, slope, slope, stream_of(slope));
    return slope;
  }

  bool is_maximum_;
};

// Saved: the condition.
class WhereNode : public Node {
 public:
  WhereNode(std::vector<Tensor> inputs, std::vector<Tensor> saved)
      : Node(std::move(inputs), std::move(saved)), a_(input(0).shape()), b_(input(1).shape()) {}
  const char* name() const override { return "where"; }
  std::optional<Attributes> attributes() const override { return Attributes(); }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const Tensor zero = constant_like(result_grad, 0);
    if (targets[0]) give_sum(targets[0], chosen(result_grad, result_grad, zero), a_);
    if (targets[1]) give_sum(targets[1], chosen(result_grad, zero, result_grad), b_);
  }

 private:
  Tensor chosen(const Tensor& result_grad, const Tensor& where_true, const Tensor& where_false) const {
    const Tensor y = empty_like(result_grad);
    kernels_of(y).where(saved(0), where_true, where_false, y, stream_of(y));
    return y;
  }

  Shape a_, b_;
};

// Recorded only for a Trace: a comparison has no gradient.
class CompareNode : public Node {
 public:
  CompareNode(std::vector<Tensor> inputs, Comparison comparison) : Node(std::move(inputs)), comparison_(comparison) {}
  const char* name() const override { return "compare"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"comparison", static_cast<std::int64_t>(comparison_)}};
  }
  void backward(const Tensor&, std::span<const GradTarget>) override {
    throw InvalidArgument("backward: a comparison has no gradient");
  }

 private:
  Comparison comparison_;
};

void check_operands(const char* name, const Tensor& a, const Tensor& b) {
  check_activation(name, "a", a);
  check_alike(name, "b", b, a);
}

// For x += y and the others.
void check_rebinds(const char* name, const Tensor& x) {
  check_place(name, "the left side", x);
  const VariableState* const state = variable_of(x);
  const bool is_leaf = requires_grad(x) && node_of(x) == nullptr;
  if (is_leaf || (state != nullptr && state->is_registered))
    throw InvalidArgument(
        "{}: {} {}, and would be replaced by a result that the module and the optimizer do not know; let an optimizer "
        "update it, or copy_from() new values into it",
        name, describe(x), is_leaf ? "requires a gradient" : "is registered in a module");
}
Tensor& rebind_to(const char* name, Tensor& x, Tensor&& result) {
  if (result.shape() != x.shape())
    throw InvalidArgument(
        "{}: the left side is {}, the result would be {}; expected a right side that is repeated to {}", name,
        x.shape().text(), result.shape().text(), x.shape().text());
  x = cast(result, x.dtype());
  return x;
}

Tensor compare(const char* name, Comparison comparison, const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return compare(name, comparison, wide->first, wide->second);
  check_operands(name, a, b);
  const Tensor mask = empty_like(a, broadcast_shape(name, a.shape(), b.shape(), a, b), DType::kUInt8);
  kernels_of(a).compare(comparison, a, b, mask, stream_of(a));
  if (Trace::active()) record<CompareNode>(mask, {a, b}, comparison);
  return mask;
}

Tensor compare_constant(const char* name, Comparison comparison, const Tensor& x, float constant) {
  check_activation(name, "x", x);
  return compare(name, comparison, x, constant_like(x, constant));
}

// constant > x, constant >= x
Tensor compare_reversed(const char* name, Comparison comparison, const Tensor& x, float constant) {
  check_activation(name, "x", x);
  return compare(name, comparison, constant_like(x, constant), x);
}

}  // namespace

void record_sum(const Tensor& sum, const Tensor& a, const Tensor& b) { record<SumNode>(sum, {a, b}, 1.0F); }

Tensor add(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return add(wide->first, wide->second);
  check_operands("add", a, b);
  const Tensor y = compute(BinaryFunction::kAdd, a, b);
  record<SumNode>(y, {a, b}, 1.0F);
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return sub(wide->first, wide->second);
  check_operands("sub", a, b);
  const Tensor y = compute(BinaryFunction::kSub, a, b);
  record<SumNode>(y, {a, b}, -1.0F);
  return y;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return mul(wide->first, wide->second);
  check_operands("mul", a, b);
  const Tensor y = compute(BinaryFunction::kMul, a, b);
  record<MulNode>(y, {a, b}, std::vector{a, b});
  return y;
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return div(wide->first, wide->second);
  check_operands("div", a, b);
  const Tensor y = compute(BinaryFunction::kDiv, a, b);
  record<DivNode>(y, {a, b}, std::vector{b, detach(y)});
  return y;
}

Tensor pow(const Tensor& given_base, const Tensor& given_exponent) {
  const Tensor base = autocast_to_float32(given_base), exponent = autocast_to_float32(given_exponent);
  check_operands("pow", base, exponent);
  const Tensor y = compute(BinaryFunction::kPow, base, exponent);
  record<PowNode>(y, {base, exponent}, std::vector{base, exponent});
  return y;
}

Tensor pow(float base, const Tensor& given) {
  check_activation("pow", "exponent", given);
  const Tensor exponent = autocast_to_float32(given);  // before the base is rounded to its type
  return pow(constant_like(exponent, base), exponent);
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return maximum(wide->first, wide->second);
  check_operands("maximum", a, b);
  const Tensor y = compute(BinaryFunction::kMaximum, a, b);
  record<ExtremeNode>(y, {a, b}, std::vector{a, b}, true);
  return y;
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return minimum(wide->first, wide->second);
  check_operands("minimum", a, b);
  const Tensor y = compute(BinaryFunction::kMinimum, a, b);
  record<ExtremeNode>(y, {a, b}, std::vector{a, b}, false);
  return y;
}

#define LOCKSTEP_REBINDING(assignment, operation)           \
  Tensor& operator assignment(Tensor& x, const Tensor& y) { \
    check_rebinds(#assignment, x);                          \
    return rebind_to(#assignment, x, x operation y);        \
  }                                                         \
  Tensor& operator assignment(Tensor& x, float constant) {  \
    check_rebinds(#assignment, x);                          \
    return rebind_to(#assignment, x, x operation constant); \
  }
LOCKSTEP_REBINDING(+=, +)
LOCKSTEP_REBINDING(-=, -)
LOCKSTEP_REBINDING(*=, *)
LOCKSTEP_REBINDING(/=, /)
#undef LOCKSTEP_REBINDING

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", Comparison::kEqual, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", Comparison::kNotEqual, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", Comparison::kGreater, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", Comparison::kGreaterEqual, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", Comparison::kGreater, b, a); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", Comparison::kGreaterEqual, b, a); }

Tensor eq(const Tensor& x, float constant) { return compare_constant("eq", Comparison::kEqual, x, constant); }
Tensor ne(const Tensor& x, float constant) { return compare_constant("ne", Comparison::kNotEqual, x, constant); }
Tensor gt(const Tensor& x, float constant) { return compare_constant("gt", Comparison::kGreater, x, constant); }
Tensor ge(const Tensor& x, float constant) { return compare_constant("ge", Comparison::kGreaterEqual, x, constant); }
Tensor lt(const Tensor& x, float constant) { return compare_reversed("lt", Comparison::kGreater, x, constant); }
Tensor le(const Tensor& x, float constant) { return compare_reversed("le", Comparison::kGreaterEqual, x, constant); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (const auto wide = autocast_to_widest(a, b)) return where(condition, wide->first, wide->second);
  check_operands("where", a, b);
  check_place("where", "condition", condition, kAnyDims, &a.device());
  if (condition.dtype() != DType::kUInt8 && condition.dtype() != DType::kInt8)
    throw InvalidArgument("where: condition must be uint8 or int8, got {}: eq(), gt() and similar functions return one",
                          name_of(condition.dtype()));
  const Shape shape = broadcast_shape("where", condition.shape(), broadcast_shape("where", a.shape(), b.shape(), a, b));
  const Tensor y = empty_like(a, shape);
  kernels_of(a).where(condition, a, b, y, stream_of(a));
  record<WhereNode>(y, {a, b}, std::vector{condition});
  return y;
}

}  // namespace lockstep
