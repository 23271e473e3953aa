// Metrics of models that predict numbers, exact over ranks as those of metrics.h.
#pragma once

#include "lockstep/train/metrics.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Both take float32 outputs and float32 targets of equal shapes, else throw InvalidArgument; every element counts as a
// sample. value() is NaN without elements.

// The mean of (output - target)^2, each squared in double and rounded once.
class MeanSquaredError : public Mean {
 public:
  MeanSquaredError() : Mean({}, Mode::kLess) {}
  void update(const Tensor& outputs, const Tensor& targets) override;
  double root() const;  // of value(): in the unit of the targets
};

// The mean of |output - target|.
class MeanAbsoluteError : public Mean {
 public:
  MeanAbsoluteError() : Mean({}, Mode::kLess) {}
  void update(const Tensor& outputs, const Tensor& targets) override;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
