#include "lockstep/train/check_finite.h"

#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

// fmt prints "nan" and "-nan", but the sign has no meaning.
std::string loss_text(float value) { return std::isnan(value) ? "NaN" : fmt::format("{}", value); }

}  // namespace

float check_finite(const Tensor& loss, std::int64_t step, const CheckFiniteOptions& options) {
  if (!loss.defined())
    throw InvalidArgument("check_finite: the {} of step {} is an undefined tensor", options.name, step);
  const float value = loss.item();
  if (std::isfinite(value)) return value;
  const auto group = options.group ? options.group : default_process_group();
  const std::string reason = fmt::format(
      "step {}: Model diverged with {} = {} on rank {}: training stops here, on all ranks; the last checkpoint is "
      "intact. "
      "Try a smaller learning rate, a warm-up, or clip_grad_norm(); if it happens at once, look for a bad sample",
      step, options.name, loss_text(value), group ? group->rank() : 0);
  if (group) group->abort(reason);
  throw Error("{}", reason);
}

}  // namespace lockstep::train
