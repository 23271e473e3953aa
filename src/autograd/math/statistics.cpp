#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/reduced.h"
#include "src/autograd/math/row_views.h"

namespace lockstep {

namespace {

// factor * the sum of magnitudes or squares of x, float32, in the shape `kept`.
Tensor absolute_sum(bool squares, const Tensor& x, float factor, const Shape& kept) {
  const Tensor y = empty_like(x, kept, DType::kFloat32);
  kernels_of(x).absolute_sum(squares, x, factor, y, stream_of(x));
  return y;
}

Tensor quotient_or_zero(const Tensor& a, const Tensor& b) {
  const Tensor zero = constant_like(b, 0);
  return where(eq(b, zero), zero, a / b);
}

// y = sum of (x - mean)^2 / divisor: x_grad = 2 y_grad (x - mean) / divisor; for the root, divided by 2 y. Saved: x,
// the mean, and for the root the result.
class VarNode : public Node {
 public:
  VarNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Reduced& reduced, float correction, float factor,
          bool is_root)
      : Node(std::move(inputs), std::move(saved)),
        kept_(reduced.shape(true)),
        dims_(reduced.dims()),
        correction_(correction),
        factor_(factor),
        is_root_(is_root) {}
  const char* name() const override { return is_root_ ? "stddev" : "var"; }
  std::optional<Attributes> attributes() const override {
    return Attributes{{"dims", dims_}, {"correction", double{correction_}}};
  }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const NoGrad no_grad;
    const Tensor y_grad = result_grad.reshaped(kept_);
    const Tensor slope =
        is_root_ ? scale(quotient_or_zero(y_grad, saved(2).reshaped(kept_)), factor_) : scale(y_grad, 2 * factor_);
    targets[0].give((saved(0) - saved(1)) * slope);
  }

 private:
  Shape kept_;
  std::vector<std::int64_t> dims_;
  float correction_, factor_;
  bool is_root_;
};

Tensor variance(const char* name, const Tensor& given, const Dims& dims, bool keepdim, float correction, bool is_root) {
  check_activation(name, "x", given);
  if (given.dtype() != DType::kFloat32)
    return cast(variance(name, cast(given, DType::kFloat32), dims, keepdim, correction, is_root), given.dtype());
  const Tensor& x = given;
  const Reduced reduced(name, x.shape(), dims);
  const float factor = 1 / std::max(0.0F, static_cast<float>(reduced.count()) - correction);
  const Shape kept = reduced.shape(true);
  Tensor average, y;
  {
    const NoGrad no_grad;
    average = mean(x, dims, true);
    y = absolute_sum(true, x - average, factor, kept);
    if (is_root) y = sqrt(y);
    y = y.reshaped(reduced.shape(keepdim));
  }
  std::vector<Tensor> saved{x, average};
  if (is_root) saved.push_back(detach(y));
  record<VarNode>(y, {x}, std::move(saved), reduced, correction, factor, is_root);
  return y;
}

// Saved: x, the norm.
class NormNode : public Node {
 public:
  NormNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Reduced& reduced, float p)
      : Node(std::move(inputs), std::move(saved)), kept_(reduced.shape(true)), dims_(reduced.dims()), p_(p) {}
  const char* name() const override { return "norm"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dims", dims_}, {"p", double{p_}}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const NoGrad no_grad;
    const Tensor x = saved(0), y = saved(1).reshaped(kept_), y_grad = result_grad.reshaped(kept_);
    if (p_ == 1) return targets[0].give(sign(x) * y_grad);
    if (p_ == 2) return targets[0].give(x * quotient_or_zero(y_grad, y));
    const Tensor zero = constant_like(x, 0), is_largest = where(eq(abs(x), y), constant_like(x, 1), zero);
    Tensor count = empty_like(y);
    kernels_of(x).sum(is_largest, 1, count, stream_of(x));
    targets[0].give(sign(x) * is_largest * (y_grad / count));
  }

 private:
  Shape kept_;
  std::vector<std::int64_t> dims_;
  float p_;
};

// Saved: x, the result. x_grad = y_grad e^(x - y), and 0 where y is -infinity, so all of its x are.
class LogSumExpNode : public Node {
 public:
  LogSumExpNode(std::vector<Tensor> inputs, std::vector<Tensor> saved, const Reduced& reduced)
      : Node(std::move(inputs), std::move(saved)), kept_(reduced.shape(true)), dims_(reduced.dims()) {}
  const char* name() const override { return "logsumexp"; }
  std::optional<Attributes> attributes() const override { return Attributes{{"dims", dims_}}; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    const NoGrad no_grad;
    const Tensor y = saved(1).reshaped(kept_);
    const Tensor shift = where(eq(y, -std::numeric_limits<float>::infinity()), constant_like(y, 0), y);
    targets[0].give(exp(saved(0) - shift) * result_grad.reshaped(kept_));
  }

 private:
  Shape kept_;
  std::vector<std::int64_t> dims_;
};

}  // namespace

Tensor var(const Tensor& x, const Dims& dims, bool keepdim, float correction) {
  return variance("var", x, dims, keepdim, correction, false);
}
Tensor stddev(const Tensor& x, const Dims& dims, bool keepdim, float correction) {
  return variance("stddev", x, dims, keepdim, correction, true);
}

Tensor norm(const Tensor& given, float p, const Dims& dims, bool keepdim) {
  check_activation("norm", "x", given);
  const bool is_largest = p == std::numeric_limits<float>::infinity();
  if (p != 1 && p != 2 && !is_largest)
    throw InvalidArgument("norm: got p = {}, expected 1, 2 or infinity; other norms are made of abs(), pow() and sum()",
                          p);
  const Tensor x = autocast_to_float32(given);
  const Reduced reduced("norm", x.shape(), dims);
  const Shape kept = reduced.shape(true);
  Tensor y;
  {
    const NoGrad no_grad;
    y = is_largest ? amax(abs(x), dims, true) : absolute_sum(p == 2, x, 1, kept);
    if (p == 2) y = sqrt(y);
    y = cast(y, x.dtype()).reshaped(reduced.shape(keepdim));
  }
  record<NormNode>(y, {x}, std::vector{x, detach(y)}, reduced, p);
  return y;
}

Tensor logsumexp(const Tensor& given, const Dims& dims, bool keepdim) {
  check_activation("logsumexp", "x", given);
  const Tensor x = autocast_to_float32(given);
  const Reduced reduced("logsumexp", x.shape(), dims);
  Tensor y;
  {
    const NoGrad no_grad;
    const Tensor largest = amax(x, dims, true), zero = constant_like(x, 0);
    const float infinity = std::numeric_limits<float>::infinity();
    const Tensor shift = where(eq(abs(largest), infinity), zero, largest);
    y = (ln(sum(exp(x - shift), dims, true)) + shift).reshaped(reduced.shape(keepdim));
  }
  record<LogSumExpNode>(y, {x}, std::vector{x, detach(y)}, reduced);
  return y;
}

}  // namespace lockstep
