// The rows of a step of a recurrent layer on the CPU, which its plain kernels and its vector loops share.
#pragma once

#include <cstdint>

#include "lockstep/core/view.h"

namespace lockstep {

// Whether the samples have ended at a step.
class EndedRows {
 public:
  EndedRows(std::int64_t step, In lengths) : step_(step), lengths_(lengths.as<std::int64_t>()) {}
  bool operator()(std::int64_t row) const { return lengths_ != nullptr && step_ >= lengths_[row]; }

 private:
  std::int64_t step_;
  const std::int64_t* lengths_;
};

}  // namespace lockstep
