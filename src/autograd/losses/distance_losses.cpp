// Losses that other operators compute.
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/losses/loss_reduction.h"

namespace lockstep {

namespace {

// Checks that the tensors have x's shape and device, and a float type.
void check_same_shapes(const char* name, const Tensor& x, const char* what, const Tensor& other,
                       const char* other_what) {
  check_activation(name, what, x);
  check_activation(name, other_what, other, kAnyDims, &x.device());
  if (other.shape() != x.shape())
    throw InvalidArgument("{}: {} {} must have the shape of {}, {}", name, other_what, other.shape().text(), what,
                          x.shape().text());
}

void check_rows(const char* name, const char* what, const Tensor& x) {
  if (x.shape().dims() == 0) throw InvalidArgument("{}: expected {} (..., D), got a single number", name, what);
}

Tensor distances(const Tensor& a, const Tensor& b, const TripletMarginOptions& options) {
  const Tensor difference = a - b + options.eps;
  if (options.p == 1 || options.p == 2 || std::isinf(options.p)) return norm(difference, options.p, -1);
  // The powers' derivatives at 0 are infinite where the exponent is below 1: the gradient is that of norm(), 0.
  const auto power = [](const Tensor& x, float exponent) {
    const Tensor is_zero = eq(x, 0), zeros = zeros_like(x);
    return where(is_zero, zeros, pow(where(is_zero, ones_like(x), x), exponent));
  };
  return power(sum(power(abs(difference), options.p), -1), 1 / options.p);
}

// With c = clamp(d, -delta, delta), both cases are c * (d - c / 2), also in their derivative, c.
Tensor huber(const char* name, const Tensor& x, const Tensor& target, float delta, Reduction reduction) {
  check_same_shapes(name, x, "x", target, "target");
  const Tensor difference = cast(x, DType::kFloat32) - cast(target, DType::kFloat32);
  const Tensor clamped = clamp(difference, -delta, delta);
  return reduce_losses(name, clamped * (difference - clamped * 0.5f), reduction);
}

// Signs, which may be whole numbers; these are read on the host.
Tensor signs_of(const Tensor& target) {
  if (target.dtype() != DType::kInt64) return cast(target, DType::kFloat32);
  const Tensor host = target.to(cpu_device());
  std::vector<float> signs;
  for (const std::int64_t sign : host.span<std::int64_t>()) signs.push_back(static_cast<float>(sign));
  return Tensor::from(std::span<const float>(signs), target.shape(), target.device());
}

}  // namespace

Tensor huber_loss(const Tensor& x, const Tensor& target, float delta, Reduction reduction) {
  if (!(delta > 0)) throw InvalidArgument("huber_loss: delta must be above 0, got {}", delta);
  return huber("huber_loss", x, target, delta, reduction);
}

Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, float beta, Reduction reduction) {
  if (!(beta >= 0)) throw InvalidArgument("smooth_l1_loss: beta must be 0 or more, got {}", beta);
  if (beta > 0) return huber("smooth_l1_loss", x, target, beta, reduction) / beta;
  check_same_shapes("smooth_l1_loss", x, "x", target, "target");
  return x.count() == 0 ? reduce_losses("smooth_l1_loss", l1_loss(x, target, Reduction::kNone), reduction)
                        : l1_loss(x, target, reduction);
}

Tensor kl_div(const Tensor& log_probabilities, const Tensor& target, const KlDivOptions& options) {
  check_same_shapes("kl_div", log_probabilities, "log_probabilities", target, "target");
  if (options.batch_mean && (options.reduction != Reduction::kMean || target.shape().dims() == 0))
    throw InvalidArgument("kl_div: batch_mean needs Reduction::kMean and a first dimension, the batch; target has {}",
                          target.shape().text());
  const Tensor x = cast(log_probabilities, DType::kFloat32), wanted = cast(target, DType::kFloat32);
  // Where the target is 0, numbers replace it and x that have no part in the result, and no infinite derivative.
  const Tensor zeros = zeros_like(wanted),
               is_zero = eq(wanted, options.log_target ? -std::numeric_limits<float>::infinity() : 0.0f),
               logarithms =
                   options.log_target ? where(is_zero, zeros, wanted) : ln(where(is_zero, ones_like(wanted), wanted)),
               weights = options.log_target ? exp(logarithms) : wanted;
  const Tensor losses = where(is_zero, zeros, weights * (logarithms - where(is_zero, zeros, x)));
  if (!options.batch_mean) return reduce_losses("kl_div", losses, options.reduction);
  if (target.shape()[0] == 0) throw InvalidArgument("kl_div: the batch is empty, so its mean loss is undefined");
  return sum(losses) / static_cast<float>(target.shape()[0]);
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& options) {
  check_same_shapes("triplet_margin_loss", anchor, "anchor", positive, "positive");
  check_same_shapes("triplet_margin_loss", anchor, "anchor", negative, "negative");
  check_rows("triplet_margin_loss", "rows", anchor);
  if (!(options.margin > 0) || !(options.p > 0) || !(options.eps >= 0))
    throw InvalidArgument("triplet_margin_loss: margin {} and p {} must be above 0, and eps {} not below it",
                          options.margin, options.p, options.eps);
  const Tensor a = cast(anchor, DType::kFloat32), near = cast(positive, DType::kFloat32),
               far = cast(negative, DType::kFloat32);
  Tensor distance = distances(a, far, options);
  if (options.swap) distance = minimum(distance, distances(near, far, options));
  return reduce_losses("triplet_margin_loss", relu(distances(a, near, options) - distance + options.margin),
                       options.reduction);
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingOptions& options) {
  check_same_shapes("cosine_embedding_loss", a, "a", b, "b");
  check_rows("cosine_embedding_loss", "rows", a);
  check_place("cosine_embedding_loss", "target (...)", target, static_cast<int>(a.shape().dims()) - 1, &a.device());
  for (std::size_t dim = 0; dim + 1 < a.shape().dims(); ++dim)
    if (target.shape()[dim] != a.shape()[dim])
      throw InvalidArgument("cosine_embedding_loss: target {} must have one value for each row of a {}",
                            target.shape().text(), a.shape().text());
  const Tensor x = cast(a, DType::kFloat32), y = cast(b, DType::kFloat32), wanted = signs_of(target);
  constexpr float kEpsilon = 1e-12f;  // PyTorch's, for rows of zeros
  const Tensor cosine = sum(x * y, -1) * rsqrt((sum(x * x, -1) + kEpsilon) * (sum(y * y, -1) + kEpsilon));
  const Tensor zeros = zeros_like(cosine);
  return reduce_losses("cosine_embedding_loss",
                       where(eq(wanted, 1), 1 - cosine, where(eq(wanted, -1), relu(cosine - options.margin), zeros)),
                       options.reduction);
}

}  // namespace lockstep
