#include "src/comm/host/hierarchical/ring_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::host {

void RingRun::begin(const Signature& call, const RingPlan& plan, int root, BlockAt block_at) {
  call_ = call;
  root_ = root;
  plan_ = &plan;
  block_at_ = std::move(block_at);
  under_way_.clear();
  scratch_bytes_ = (plan.largest_chunk_bytes() + 63) / 64 * 64;
  const std::size_t needed = 2 * plan.window() * scratch_bytes_;
  if (scratch_.size() < needed) scratch_.resize(needed);
  in_.resize(static_cast<std::size_t>(std::max(node_.ranks + 1, 2)));
  out_.resize(static_cast<std::size_t>(node_.ranks));
}

std::byte* RingRun::at(int local_rank, std::size_t block, int chunk) const {
  const std::size_t offset = plan_->chunk(block, chunk).begin - plan_->block(block).begin;
  return block_at_(local_rank, block) + offset * size_of(call_.dtype);
}

void RingRun::turn(std::size_t turn, std::chrono::steady_clock::time_point deadline) {
  plan_->begin_turn(turn, begun_);
  rail_.mark();  // a transfer that begins now is waited for in the next turn
  for (const Step& step : begun_) {
    depart(step);
    expect(step);
  }
  rail_.run(deadline);
  for (const Step& step : under_way_) finish(step);
  std::swap(begun_, under_way_);
}

void RingRun::depart(const Step& step) {
  if (step.departure == RingPlan::Departure::kNothing) return;
  std::byte* leaving = scratch(step.block, step.index);
  if (step.departure == RingPlan::Departure::kResult)
    leaving = at(root_ >= 0 ? root_ : node_.local_rank, step.block, step.send);
  if (step.departure == RingPlan::Departure::kOwnSum) {
    for (int rank = 0; rank < node_.ranks; ++rank)
      in_[static_cast<std::size_t>(rank)] = at(rank, step.block, step.send);
    reduce(in_.data(), node_.ranks, &leaving, 1, partial_op(), count_of(step.block, step.send));
    bytes_read_ += bytes_of(step.block, step.send) * static_cast<std::size_t>(node_.ranks - 1);
  }
  rail_.send(plan_->next_node(), leaving, bytes_of(step.block, step.send));
}

void RingRun::expect(const Step& step) {
  if (step.arrival == RingPlan::Arrival::kNothing) return;
  const bool is_result = step.arrival == RingPlan::Arrival::kCopy;
  std::byte* const to =
      is_result ? at(node_.local_rank, step.block, step.receive) : scratch(step.block, step.index + 1);
  rail_.receive(plan_->previous_node(), to, bytes_of(step.block, step.receive));
}

void RingRun::finish(const Step& step) {
  std::byte* const arrived = scratch(step.block, step.index + 1);
  const std::size_t count = count_of(step.block, step.receive);
  for (int rank = 0; rank < node_.ranks; ++rank)
    out_[static_cast<std::size_t>(rank)] = at(rank, step.block, step.receive);
  switch (step.arrival) {
    case RingPlan::Arrival::kNothing: return;
    case RingPlan::Arrival::kPartial: return add_own_values(arrived, &arrived, 1, partial_op(), step);
    case RingPlan::Arrival::kResult:
      if (root_ >= 0) return add_own_values(arrived, &out_[static_cast<std::size_t>(root_)], 1, call_.op, step);
      return add_own_values(arrived, out_.data(), node_.ranks, call_.op, step);
    case RingPlan::Arrival::kCopy:
      for (int rank = 0; rank < node_.ranks; ++rank)
        if (std::byte* to = out_[static_cast<std::size_t>(rank)]; rank != node_.local_rank)
          std::memcpy(to, out_[static_cast<std::size_t>(node_.local_rank)], count * size_of(call_.dtype));
      return;
    case RingPlan::Arrival::kOther:
      const std::byte* own = scratch(step.block, step.index);
      const std::byte* sums[] = {node_.index == 0 ? own : arrived, node_.index == 0 ? arrived : own};
      return reduce(sums, 2, out_.data(), node_.ranks, call_.op, count);
  }
}

// The order of summation: the sum that arrived comes first.
void RingRun::add_own_values(const std::byte* arrived, std::byte* const* out, int outputs, ReduceOp op,
                             const Step& step) {
  in_[0] = arrived;
  for (int rank = 0; rank < node_.ranks; ++rank)
    in_[static_cast<std::size_t>(rank) + 1] = at(rank, step.block, step.receive);
  reduce(in_.data(), node_.ranks + 1, out, outputs, op, count_of(step.block, step.receive));
  bytes_read_ += bytes_of(step.block, step.receive) * static_cast<std::size_t>(node_.ranks - 1);
}

void RingRun::reduce(const std::byte* const* in, int inputs, std::byte* const* out, int outputs, ReduceOp op,
                     std::size_t count) {
  host::reduce({call_.dtype, op, inputs, outputs, in, out, count, node_.order, node_.all_ranks});
}

}  // namespace lockstep::host
