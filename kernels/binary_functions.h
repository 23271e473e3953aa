// What BinaryFunction and Comparison mean, of one pair of elements: for the plain kernels of the CPU and for those of GPUs.
#pragma once

#include "lockstep/core/elementwise_functions.h"
#include "lockstep/core/host_device.h"

namespace lockstep {

LOCKSTEP_HOST_DEVICE inline float value_of(BinaryFunction function, float a, float b) {
  switch (function) {
    case BinaryFunction::kAdd:
      return a + b;
    case BinaryFunction::kSub:
      return a - b;
    case BinaryFunction::kMul:
      return a * b;
    case BinaryFunction::kDiv:
      return a / b;
  }
  return 0;
}

LOCKSTEP_HOST_DEVICE inline bool holds(Comparison comparison, float a, float b) {
  switch (comparison) {
    case Comparison::kEqual:
      return a == b;
    case Comparison::kNotEqual:
      return a != b;
    case Comparison::kGreater:
      return a > b;
    case Comparison::kGreaterEqual:
      return a >= b;
  }
  return false;
}

}  // namespace lockstep
