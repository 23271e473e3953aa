// The result of a loss that was computed for each row or element.
#pragma once

#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/core/error.h"

namespace lockstep {

inline Tensor reduce_losses(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

// The same for a loss that was not checked before: the mean of none is undefined.
inline Tensor reduce_losses(const char* name, const Tensor& losses, Reduction reduction) {
  if (losses.count() == 0 && reduction == Reduction::kMean)
    throw InvalidArgument("{}: the inputs have no rows, so their mean loss is undefined", name);
  return reduce_losses(losses, reduction);
}

}  // namespace lockstep
