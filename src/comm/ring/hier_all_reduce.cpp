// all_reduce between nodes. See hier_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/ring/hier_transport.h"
#include "src/comm/ring/reduce_kernels.h"

namespace lockstep::ring {

namespace {

constexpr std::size_t kSmallBytes = kSlotBytes;  // up to here latency counts, not bytes

}  // namespace

void HierTransport::all_reduce() {
  const std::size_t bytes = operation_.bytes();
  if (operation_.send != operation_.receive && bytes != 0) std::memcpy(operation_.receive, operation_.send, bytes);
  if (bytes <= kSmallBytes) return all_reduce_small();
  const Signature& call = operation_.signature;
  const RingPlan plan({call.count, call.dtype, layout_.nodes(), my_node(), layout_.rails(), is_on_a_rail() ? local_rank() : 0});
  if (is_on_a_rail()) begin_rail();
  if (node_.locate(operation_.receive, bytes))
    all_reduce_in_place(plan);
  else
    all_reduce_through_windows(plan);
  if (is_on_a_rail()) rail_bytes_sent_.store(rail_->payload_bytes_sent(), std::memory_order_relaxed);
}

void HierTransport::all_reduce_in_place(const RingPlan& plan) {
  if (is_on_a_rail()) {
    const std::size_t element = size_of(operation_.signature.dtype);
    ring_->begin(operation_.signature, plan,
                 [&](int rank, std::size_t block) { return node_.located(rank) + plan.block(block).begin * element; });
    for (std::size_t turn = 0; turn < plan.turns(); ++turn) ring_->turn(turn, rail_deadline());
  }
  wait_longer();
  node_.rounds().barrier();
}

// A block is copied to its rank's window in the turn before it is needed, and back when it has its result. Then the window is
// free: one more than there are blocks under way.
void HierTransport::all_reduce_through_windows(const RingPlan& plan) {
  const std::size_t element = size_of(operation_.signature.dtype);
  auto* const data = static_cast<std::byte*>(operation_.receive);
  node_.need_windows(plan.window() + 1, RingPlan::kBlockBytes, operation_.timeout);
  const auto copy = [&](std::size_t block, bool in) {
    const Slice part = plan.block(block);
    std::byte* const window = node_.window(local_rank(), block);
    std::byte* const own = data + part.begin * element;
    std::memcpy(in ? window : own, in ? own : window, part.count() * element);
  };
  if (is_on_a_rail()) ring_->begin(operation_.signature, plan, [&](int rank, std::size_t block) { return node_.window(rank, block); });
  wait_longer();
  copy(0, true);
  for (std::size_t turn = 0; turn <= plan.turns(); ++turn) {
    node_.rounds().barrier();
    if (turn >= plan.window()) copy(turn - plan.window(), false);
    if (turn + 1 < plan.blocks()) copy(turn + 1, true);
    if (is_on_a_rail() && turn < plan.turns()) ring_->turn(turn, rail_deadline());
  }
}

// Everybody leaves its values in its slot; rail 0 sums the node's, exchanges sums with the other nodes and leaves the result in
// its own slot of the next round.
void HierTransport::all_reduce_small() {
  const std::size_t bytes = operation_.bytes();
  const std::uint64_t round = node_.rounds().next();
  if (bytes != 0) std::memcpy(node_.slot(local_rank(), round), operation_.receive, bytes);
  node_.rounds().barrier();
  if (leads()) sum_small(round);
  wait_longer();
  node_.rounds().barrier();
  if (bytes != 0) std::memcpy(operation_.receive, node_.slot(0, round + 1), bytes);
  if (!leads()) bytes_read_ += bytes;
}

void HierTransport::sum_small(std::uint64_t round) {
  const Signature& call = operation_.signature;
  const std::size_t bytes = operation_.bytes();
  small_.resize(static_cast<std::size_t>(layout_.nodes()) * kSmallBytes);
  const auto sum_of = [&](int node) { return small_.data() + static_cast<std::size_t>(node) * kSmallBytes; };
  for (int rank = 0; rank < node_.ranks(); ++rank) in_[static_cast<std::size_t>(rank)] = node_.slot(rank, round);
  std::byte* out = sum_of(my_node());
  reduce({call.dtype, call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op, node_.ranks(), 1, in_.data(), &out, call.count, order_});
  bytes_read_ += bytes * static_cast<std::size_t>(node_.ranks() - 1);
  begin_rail();
  for (int node = 0; node < layout_.nodes(); ++node) {
    in_[static_cast<std::size_t>(node)] = sum_of(node);
    if (node == my_node()) continue;
    rail_->send(node, sum_of(my_node()), bytes);
    rail_->receive(node, sum_of(node), bytes);
  }
  run_rail();
  out = node_.slot(0, round + 1);
  reduce({call.dtype, call.op, layout_.nodes(), 1, in_.data(), &out, call.count, order_, place_.world_size});
}

}  // namespace lockstep::ring
