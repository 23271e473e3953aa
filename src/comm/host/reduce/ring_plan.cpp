#include "src/comm/host/reduce/ring_plan.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/core/base/processor.h"

namespace lockstep::host {

RingPlan::RingPlan(const Shape& shape) : shape_(shape) {
  LOCKSTEP_CHECK(shape.nodes >= 2 && shape.node >= 0 && shape.node < shape.nodes && shape.rail >= 0 &&
                     shape.rail < shape.rails && shape.block_bytes % kCacheLine == 0 && shape.block_bytes > 0,
                 "node {} of {}, rail {} of {}, blocks of {} bytes", shape.node, shape.nodes, shape.rail, shape.rails,
                 shape.block_bytes);
  per_block_ = shape.block_bytes / size_of(shape.dtype);
  blocks_ = (shape.count + per_block_ - 1) / per_block_;
}

Slice RingPlan::block(std::size_t index) const {
  const std::size_t begin = index * per_block_;
  return {begin, std::min(begin + per_block_, shape_.count)};
}

Slice RingPlan::chunk(std::size_t index, int chunk) const {
  const Slice whole = block(index), mine = slice_of(whole.count(), shape_.dtype, shape_.rail, shape_.rails);
  const Slice part = slice_of(mine.count(), shape_.dtype, chunk, chunks());
  const std::size_t begin = whole.begin + mine.begin;
  return {begin + part.begin, begin + part.end};
}

// The first chunk of the first rail of a full block gets the remaining cache lines of the division.
std::size_t RingPlan::largest_chunk_bytes() const {
  const std::size_t element = size_of(shape_.dtype);
  const Slice rail = slice_of(block(0).count(), shape_.dtype, 0, shape_.rails);
  return slice_of(rail.count(), shape_.dtype, 0, chunks()).count() * element;
}

int RingPlan::legs() const {
  if (shape_.journey != Journey::kAllReduce) return shape_.nodes - 1;
  return shape_.nodes == 2 ? 1 : 2 * (shape_.nodes - 1);
}

RingPlan::Step RingPlan::step_of(std::size_t block, int index) const {
  return shape_.journey == Journey::kAllReduce ? step_of_all_reduce(block, index) : step_along_the_ring(block, index);
}

RingPlan::Step RingPlan::step_of_all_reduce(std::size_t block, int index) const {
  const int n = shape_.nodes, sums = n - 1;
  if (n == 2) return {block, index, 0, 0, Departure::kOwnSum, Arrival::kOther};
  // Sums: the chunk that leaves in step s began s nodes back, and so belongs to the node before that one.
  const bool is_sum = index < sums;
  const int shift = is_sum ? index + 1 : index - sums;
  const auto wrapped = [n](int chunk) { return (chunk % n + n) % n; };
  return {block,
          index,
          wrapped(shape_.node - shift),
          wrapped(shape_.node - shift - 1),
          index == 0 ? Departure::kOwnSum
          : is_sum   ? Departure::kPartial
                     : Departure::kResult,
          !is_sum             ? Arrival::kCopy
          : index == sums - 1 ? Arrival::kResult
                              : Arrival::kPartial};
}

// In step s the block passes from the s-th node of its path to the next: most nodes have nothing to do.
RingPlan::Step RingPlan::step_along_the_ring(std::size_t block, int index) const {
  const int n = shape_.nodes;
  const bool is_reduce = shape_.journey == Journey::kReduce;
  const int first = is_reduce ? (shape_.root_node + 1) % n : shape_.root_node;
  const int place = (shape_.node - first + n) % n;  // position on the path
  Step step{block, index, 0, 0, Departure::kNothing, Arrival::kNothing};
  if (place == index)
    step.departure = !is_reduce ? Departure::kResult : index == 0 ? Departure::kOwnSum : Departure::kPartial;
  if (place == index + 1)
    step.arrival = !is_reduce ? Arrival::kCopy : place == n - 1 ? Arrival::kResult : Arrival::kPartial;
  return step;
}

// Step s of block b begins in turn b + 2 s.
void RingPlan::begin_turn(std::size_t turn, std::vector<Step>& steps) const {
  steps.clear();
  for (int index = legs() - 1; index >= 0; --index) {
    const std::size_t lag = 2 * static_cast<std::size_t>(index);
    if (turn < lag || turn - lag >= blocks_) continue;
    const Step step = step_of(turn - lag, index);
    if (step.departure != Departure::kNothing || step.arrival != Arrival::kNothing) steps.push_back(step);
  }
}

}  // namespace lockstep::host
