// Losses of probabilities, as Keras computes them: with clipped probabilities, so that a wrong prediction of 1 has a
// finite loss. The losses of logits (cross_entropy.cpp, loss.cpp) are more precise.
#include "src/autograd/losses/probability_losses.h"

#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/autograd/losses/loss_reduction.h"

namespace lockstep {

namespace {

constexpr float kEpsilon = 1e-7F;  // keras.config.epsilon()

// The gradient of a value that is clipped is 0, as in tf.clip_by_value.
Tensor clip(const Tensor& x) {
  const Tensor low = Tensor::full({}, kEpsilon, x.device()), high = Tensor::full({}, 1 - kEpsilon, x.device());
  return where(lt(x, kEpsilon), low, where(gt(x, 1 - kEpsilon), high, x));
}

// Keras normalises the probabilities of a row before it clips them.
Tensor cross_entropy_of_soft_targets(const Tensor& probabilities, const Tensor& given,
                                     const CrossEntropyOptions& options) {
  if (!given.defined() || given.shape() != probabilities.shape())
    throw InvalidArgument(
        "cross_entropy: targets must be int64 labels or floats of the shape of the probabilities, {}; got {}",
        probabilities.shape().text(), given.defined() ? given.shape().text() : "an undefined tensor");
  if (options.ignore_index != kIgnoreIndex)
    throw InvalidArgument("cross_entropy: ignore_index {} only applies to labels: use targets of 0 for such rows",
                          options.ignore_index);
  const auto classes = static_cast<float>(given.shape()[given.shape().dims() - 1]);
  Tensor targets = cast(given, DType::kFloat32);
  if (options.label_smoothing != 0)
    targets = targets * (1 - options.label_smoothing) + options.label_smoothing / classes;
  if (options.weight.defined()) targets = targets * options.weight;
  const Tensor normalised = probabilities / sum(probabilities, -1, /*keepdim=*/true);
  return reduce_losses(neg(sum(targets * ln(clip(normalised)), -1)), options.reduction);
}

}  // namespace

Tensor cross_entropy_of_probabilities(const Tensor& given, const Tensor& targets, const CrossEntropyOptions& options) {
  if (!given.defined() || given.shape().dims() == 0)
    throw InvalidArgument("cross_entropy: expected probabilities (..., K), got {}",
                          given.defined() ? given.shape().text() : "an undefined tensor");
  const Tensor probabilities = cast(given, DType::kFloat32);
  if (!targets.defined() || targets.dtype() != DType::kInt64)
    return cross_entropy_of_soft_targets(probabilities, targets, options);
  // The logarithms of clipped probabilities are logits, as in Keras' sparse_categorical_crossentropy.
  CrossEntropyOptions of_logits = options;
  of_logits.from_logits = true;
  return softmax_cross_entropy(ln(clip(probabilities)), targets, of_logits);
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BinaryCrossEntropyOptions& options) {
  if (options.from_logits) return binary_cross_entropy_with_logits(x, target, options.reduction);
  if (!x.defined() || !target.defined() || x.shape() != target.shape())
    throw InvalidArgument("binary_cross_entropy: target {} must have the shape of the probabilities, {}",
                          target.defined() ? target.shape().text() : "(undefined)",
                          x.defined() ? x.shape().text() : "(undefined)");
  if (x.count() == 0 && options.reduction == Reduction::kMean)
    throw InvalidArgument("binary_cross_entropy: the probabilities {} are empty, so their mean loss is undefined",
                          x.shape().text());
  const Tensor probabilities = clip(cast(x, DType::kFloat32)), wanted = cast(target, DType::kFloat32);
  return reduce_losses(neg(wanted * ln(probabilities) + (1 - wanted) * ln(1 - probabilities)), options.reduction);
}

}  // namespace lockstep
