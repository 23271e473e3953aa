// Reductions between nodes, and broadcasts: what is small in one exchange, the rest around the ring. See hier_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/ring/hier_transport.h"
#include "src/comm/ring/reduce_kernels.h"

namespace lockstep::ring {

namespace {

constexpr std::size_t kSmallBytes = kSlotBytes;  // up to here latency counts, not bytes

// What is sent on is a sum, whatever becomes of it in the end.
ReduceOp partial(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

RingPlan HierTransport::plan_of(RingPlan::Journey journey) const {
  const Signature& call = operation_.signature;
  return RingPlan({call.count, call.dtype, layout_.nodes(), my_node(), layout_.rails(), is_on_a_rail() ? local_rank() : 0,
                   RingPlan::kBlockBytes, journey, call.root >= 0 ? root_node() : 0});
}

void HierTransport::all_reduce() {
  copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallBytes) return all_reduce_small();
  carry({static_cast<std::byte*>(operation_.receive), true, true}, plan_of(RingPlan::Journey::kAllReduce));
}

// Everybody leaves its values in its slot; rail 0 sums the node's, exchanges sums with the other nodes and leaves the result in
// its own slot of the next round.
void HierTransport::all_reduce_small() {
  const Signature& call = operation_.signature;
  const std::size_t bytes = operation_.bytes();
  const std::uint64_t round = node_.rounds().next();
  copy_bytes(node_.slot(local_rank(), round), operation_.receive, bytes);
  node_.rounds().barrier();
  if (leads()) {
    sum_of_node(round, small_sum(my_node()));
    begin_rail();
    for (int node = 0; node < layout_.nodes(); ++node) {
      in_[static_cast<std::size_t>(node)] = small_sum(node);
      if (node == my_node()) continue;
      rail_->send(node, small_sum(my_node()), bytes);
      rail_->receive(node, small_sum(node), bytes);
    }
    run_rail();
    std::byte* const out = node_.slot(0, round + 1);
    reduce({call.dtype, call.op, layout_.nodes(), 1, in_.data(), &out, call.count, order_, place_.world_size});
  }
  wait_longer();
  node_.rounds().barrier();
  copy_bytes(operation_.receive, node_.slot(0, round + 1), bytes);
  if (!leads()) bytes_read_ += bytes;
}

void HierTransport::sum_of_node(std::uint64_t round, std::byte* out) {
  const Signature& call = operation_.signature;
  for (int rank = 0; rank < node_.ranks(); ++rank) in_[static_cast<std::size_t>(rank)] = node_.slot(rank, round);
  reduce({call.dtype, partial(call.op), node_.ranks(), 1, in_.data(), &out, call.count, order_});
  bytes_read_ += operation_.bytes() * static_cast<std::size_t>(node_.ranks() - 1);
}

std::byte* HierTransport::small_sum(int node) {
  small_.resize(static_cast<std::size_t>(layout_.nodes()) * kSmallBytes);  // the same size every time
  return small_.data() + static_cast<std::size_t>(node) * kSmallBytes;
}

void HierTransport::reduce_to_root() {
  if (is_root()) copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallBytes) return reduce_small();
  auto* const data =
      static_cast<std::byte*>(is_root() ? operation_.receive : const_cast<void*>(operation_.send));  // only the root's is written
  const int root = root_node() == my_node() ? layout_.local_rank_of(operation_.signature.root) : -1;
  carry({data, true, is_root(), root}, plan_of(RingPlan::Journey::kReduce));
}

// As all_reduce_small(), but the sums go to the root's node only.
void HierTransport::reduce_small() {
  const Signature& call = operation_.signature;
  const std::size_t bytes = operation_.bytes();
  const std::uint64_t round = node_.rounds().next();
  copy_bytes(node_.slot(local_rank(), round), is_root() ? operation_.receive : operation_.send, bytes);
  node_.rounds().barrier();
  if (leads()) {
    sum_of_node(round, small_sum(my_node()));
    begin_rail();
    const bool is_last = my_node() == root_node();
    if (!is_last) rail_->send(root_node(), small_sum(my_node()), bytes);
    for (int node = 0; node < layout_.nodes(); ++node) {
      in_[static_cast<std::size_t>(node)] = small_sum(node);
      if (is_last && node != my_node()) rail_->receive(node, small_sum(node), bytes);
    }
    run_rail();
    std::byte* const out = node_.slot(0, round + 1);
    if (is_last) reduce({call.dtype, call.op, layout_.nodes(), 1, in_.data(), &out, call.count, order_, place_.world_size});
  }
  wait_longer();
  node_.rounds().barrier();
  if (!is_root()) return;
  copy_bytes(operation_.receive, node_.slot(0, round + 1), bytes);
  if (!leads()) bytes_read_ += bytes;
}

void HierTransport::broadcast() {
  if (is_root()) copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallBytes) return broadcast_small();
  const bool from_root = root_node() == my_node();
  const int root = from_root ? layout_.local_rank_of(operation_.signature.root) : -1;
  carry({static_cast<std::byte*>(operation_.receive), is_root(), !is_root(), root, from_root}, plan_of(RingPlan::Journey::kBroadcast));
}

// The root leaves it in its slot, rail 0 of its node takes it from there to the others' rails 0.
void HierTransport::broadcast_small() {
  const std::size_t bytes = operation_.bytes();
  const std::uint64_t round = node_.rounds().next();
  if (is_root()) copy_bytes(node_.slot(local_rank(), round), operation_.receive, bytes);
  node_.rounds().barrier();
  if (leads()) {
    std::byte* const out = node_.slot(0, round + 1);
    begin_rail();
    if (my_node() == root_node()) {
      copy_bytes(out, node_.slot(layout_.local_rank_of(operation_.signature.root), round), bytes);
      for (int node = 0; node < layout_.nodes(); ++node)
        if (node != my_node()) rail_->send(node, out, bytes);
    } else {
      rail_->receive(root_node(), out, bytes);
    }
    run_rail();
  }
  wait_longer();
  node_.rounds().barrier();
  if (is_root()) return;
  copy_bytes(operation_.receive, node_.slot(0, round + 1), bytes);
  if (!leads()) bytes_read_ += bytes;
}

// -- around the ring

void HierTransport::carry(const Cargo& cargo, const RingPlan& plan) {
  if (is_on_a_rail()) begin_rail();
  if (node_.locate(cargo.data, operation_.bytes()))
    carry_in_place(cargo, plan);
  else
    carry_through_windows(cargo, plan);
  if (is_on_a_rail()) rail_bytes_sent_.store(rail_->payload_bytes_sent(), std::memory_order_relaxed);
}

void HierTransport::carry_in_place(const Cargo& cargo, const RingPlan& plan) {
  if (is_on_a_rail()) {
    const std::size_t element = size_of(operation_.signature.dtype);
    ring_->begin(operation_.signature, plan, cargo.root,
                 [&](int rank, std::size_t block) { return node_.located(rank) + plan.block(block).begin * element; });
    for (std::size_t turn = 0; turn < plan.turns(); ++turn) ring_->turn(turn, rail_deadline_);
  }
  if (cargo.from_root && cargo.gets) {
    copy_bytes(cargo.data, node_.located(cargo.root), operation_.bytes());
    bytes_read_ += operation_.bytes();
  }
  wait_longer();
  node_.rounds().barrier();
}

// A block is copied to its rank's window in the turn before it is needed, and back when it has its result. Then the window is
// free: one more than there are blocks under way. The root's neighbours read what it sends in the turn in which it does.
void HierTransport::carry_through_windows(const Cargo& cargo, const RingPlan& plan) {
  const std::size_t element = size_of(operation_.signature.dtype);
  node_.need_windows(plan_of(RingPlan::Journey::kAllReduce).window() + 1, RingPlan::kBlockBytes, operation_.timeout);
  const auto own = [&](std::size_t block) { return cargo.data + plan.block(block).begin * element; };
  const auto bytes_of = [&](std::size_t block) { return plan.block(block).count() * element; };
  const auto give = [&](std::size_t block) {
    if (cargo.gives) copy_bytes(node_.window(local_rank(), block), own(block), bytes_of(block));
  };
  if (is_on_a_rail())
    ring_->begin(operation_.signature, plan, cargo.root, [&](int rank, std::size_t block) { return node_.window(rank, block); });
  wait_longer();
  const std::size_t lag = cargo.from_root ? 0 : plan.window();
  give(0);
  for (std::size_t turn = 0; turn <= plan.turns(); ++turn) {
    node_.rounds().barrier();
    if (cargo.gets && turn >= lag && turn - lag < plan.blocks()) {
      const std::size_t block = turn - lag;
      copy_bytes(own(block), node_.window(cargo.from_root ? cargo.root : local_rank(), block), bytes_of(block));
      if (cargo.from_root) bytes_read_ += bytes_of(block);
    }
    if (turn + 1 < plan.blocks()) give(turn + 1);
    if (is_on_a_rail() && turn < plan.turns()) ring_->turn(turn, rail_deadline_);
  }
}

}  // namespace lockstep::ring
