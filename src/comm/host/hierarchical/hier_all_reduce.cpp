// all_reduce, reduce and broadcast of ranks on several nodes: a small message takes one exchange, a larger one goes
// around the ring.
//
// Terms: K nodes, a message of B bytes. Rounds and slots are defined in control_block.h; rails, blocks, slices and
// chunks in ring_plan.h. Rail 0 leads its node.
//
//   call and size                   steps                                      bytes that leave a node
//   all_reduce up to kSmallSum      a round, an exchange of rails 0, a round   (K-1) B: its sum to every other node
//   reduce     up to kSmallSum      the same                                   B; none from the root's node
//   broadcast  up to kSmallSum      the same                                   (K-1) B, from the root's node only
//   all_reduce, larger              2 (K-1) steps of the ring                  2 (K-1)/K B
//   reduce and broadcast, larger    K-1 steps of the ring                      B; none from the last node of the ring
#include <algorithm>
#include <cstring>

#include "src/comm/host/hierarchical/hier_transport.h"
#include "src/comm/host/reduce/reduce_kernels.h"

namespace lockstep::host {

namespace {

constexpr std::size_t kSmallSum = kSlotBytes;  // below this size latency counts, not bandwidth

// Ranks pass on sums, also for an average: only the last step divides.
ReduceOp partial(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

}  // namespace

void HierTransport::all_reduce(const Operation&) {
  copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallSum) return all_reduce_small();
  carry({static_cast<std::byte*>(operation_.receive), true, true}, plan_of(RingPlan::Journey::kAllReduce));
}

// Each rank puts its values into its slot. Rail 0 sums those of the node, exchanges sums with the other nodes, and puts
// the result into its own slot of the next round.
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
  small_.resize(static_cast<std::size_t>(layout_.nodes()) * kSmallSum);  // the same size for every call
  return small_.data() + static_cast<std::size_t>(node) * kSmallSum;
}

void HierTransport::reduce_to_root(const Operation&) {
  if (is_root()) copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallSum) return reduce_small();
  auto* const own = static_cast<std::byte*>(const_cast<void*>(operation_.send));  // only the root's buffer is written
  reduce_large(operation_.signature.root, is_root() ? static_cast<std::byte*>(operation_.receive) : own);
}

// Like all_reduce_small(), but the sums go to the root's node only.
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
    if (is_last)
      reduce({call.dtype, call.op, layout_.nodes(), 1, in_.data(), &out, call.count, order_, place_.world_size});
  }
  wait_longer();
  node_.rounds().barrier();
  if (!is_root()) return;
  copy_bytes(operation_.receive, node_.slot(0, round + 1), bytes);
  if (!leads()) bytes_read_ += bytes;
}

void HierTransport::broadcast(const Operation&) {
  if (is_root()) copy_bytes(operation_.receive, operation_.send, operation_.bytes());
  if (operation_.bytes() <= kSmallSum) return broadcast_small();
  broadcast_large(operation_.signature.root, static_cast<std::byte*>(operation_.receive));
}

// The root puts the data into its slot; rail 0 of its node sends it to rail 0 of the other nodes.
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

}  // namespace lockstep::host
