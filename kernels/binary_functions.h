// The definitions of BinaryFunction and Comparison for one pair of elements, shared by the CPU's plain kernels, its
// vector loops and the kernels of GPUs. A vector loop passes the function as a constant.
#pragma once

#include <cmath>

#include "kernels/always_inline.h"
#include "lockstep/core/elementwise_functions.h"

namespace lockstep {

LOCKSTEP_FORMULA float value_of(BinaryFunction function, float a, float b) {
  switch (function) {
    case BinaryFunction::kAdd: return a + b;
    case BinaryFunction::kSub: return a - b;
    case BinaryFunction::kMul: return a * b;
    case BinaryFunction::kDiv: return a / b;
    case BinaryFunction::kPow: return powf(a, b);
    case BinaryFunction::kPowBaseSlope: return b == 0 ? 0 : b * powf(a, b - 1);
    case BinaryFunction::kPowExponentSlope: return a == 0 && b >= 0 ? 0 : powf(a, b) * logf(a);
    case BinaryFunction::kMaximum: return ((a > b) | (a != a)) ? a : b;
    case BinaryFunction::kMinimum: return ((a < b) | (a != a)) ? a : b;
    case BinaryFunction::kMaximumSlope: return a < b ? 0.0F : a == b ? 0.5F : 1.0F;
  }
  return 0;
}

LOCKSTEP_FORMULA bool holds(Comparison comparison, float a, float b) {
  switch (comparison) {
    case Comparison::kEqual: return a == b;
    case Comparison::kNotEqual: return a != b;
    case Comparison::kGreater: return a > b;
    case Comparison::kGreaterEqual: return a >= b;
  }
  return false;
}

}  // namespace lockstep
