// The rule by which a dropout keeps an element.
#pragma once

#include <cstdint>

#include "lockstep/core/operator_shapes.h"
#include "lockstep/core/philox.h"

namespace lockstep {

struct DropoutRule {
  std::uint32_t threshold;  // an element is kept if its word is at least this
  float factor;             // of kept elements
};
inline DropoutRule dropout_rule(const DropoutParams& params) {
  return {static_cast<std::uint32_t>(static_cast<double>(params.p) * 0x1p32), 1 / (1 - params.p)};
}

// x's elements as rows with consecutive numbers.
struct DropoutRows {
  std::int64_t count, elements;  // number of rows; elements per row
  std::int64_t numbers;          // distance of the numbers from one row's first element to the next row's
};
inline DropoutRows dropout_rows(const DropoutParams& params, std::int64_t count) {
  if (params.row_elements == 0) return {1, count, count};
  return {count / params.row_elements, params.row_elements, params.row_elements + params.skipped};
}

}  // namespace lockstep
