// Calls that are composed of plain ones in the same way on every backend: coalesced calls and pre-multiplied sums.
//
// Results do not depend on how buffers are packed, since a reduction is elementwise (except that among three or more
// nodes a value's place in the message determines the order of its sum, see ring_plan.h). Values are multiplied before
// they leave their rank, in the accumulation type, and rounded to the element type; so the path that they take does not
// matter.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/place.h"

namespace lockstep {

// out[i] = in[i] * factor; `out` may be `in`. Floating point only.
void scale(DType dtype, const std::byte* in, std::byte* out, std::size_t count, double factor);

class CompositeCalls {
 public:
  explicit CompositeCalls(const Place& place) : place_(place) {}

  static bool is_composite(const Operation& operation) {
    return (operation.layout && !operation.layout->regions.empty()) || operation.signature.op == ReduceOp::kPremulSum;
  }
  // Executes a composite operation as plain ones, whose signatures differ only in the count; together they keep its
  // deadline. One thread at a time.
  using Execute = std::function<void(const Operation&)>;
  void run(const Operation& operation, const Execute& execute);

 private:
  void run_premultiplied(const Operation& operation, const Execute& execute);
  void run_coalesced(const Operation& operation, const Execute& execute);

  Place place_;
  std::vector<std::byte> packed_;
  std::vector<std::byte> scaled_;
};

}  // namespace lockstep
