// The calls that go around the ring of nodes, in place or through windows. See hier_transport.h.
#include <algorithm>
#include <cstring>

#include "src/comm/host/hierarchical/hier_transport.h"

namespace lockstep::host {

namespace {

// Smaller parts travel faster over the connections between all ranks than in so many rounds around the ring.
constexpr std::size_t kPartAroundTheRing = 64 * 1024;

}  // namespace

RingPlan HierTransport::plan_of(RingPlan::Journey journey, int root) const {
  const Signature& call = operation_.signature;
  return RingPlan({call.count, call.dtype, layout_.nodes(), my_node(), layout_.rails(),
                   is_on_a_rail() ? local_rank() : 0, RingPlan::kBlockBytes, journey, layout_.node_of(root)});
}

void HierTransport::broadcast_large(int root, std::byte* data) {
  const bool gives = root == place_.rank;
  carry({data, gives, !gives, local_root(root), local_root(root) >= 0}, plan_of(RingPlan::Journey::kBroadcast, root));
}

// The root's result replaces its values; no other rank's memory is written.
void HierTransport::reduce_large(int root, std::byte* data) {
  carry({data, true, root == place_.rank, local_root(root)}, plan_of(RingPlan::Journey::kReduce, root));
}

void HierTransport::all_gather(const Operation&) {
  const std::size_t bytes = operation_.bytes();
  if (bytes < kPartAroundTheRing) return over_the_mesh();
  auto* const parts = static_cast<std::byte*>(operation_.receive);
  copy_bytes(parts + static_cast<std::size_t>(place_.rank) * bytes, operation_.send, bytes);
  for (int rank = 0; rank < place_.world_size; ++rank)
    broadcast_large(rank, parts + static_cast<std::size_t>(rank) * bytes);
}

void HierTransport::reduce_scatter(const Operation&) {
  const std::size_t bytes = operation_.bytes();
  if (bytes < kPartAroundTheRing) return over_the_mesh();
  auto* const parts = static_cast<std::byte*>(const_cast<void*>(operation_.send));
  const auto part = [&](int rank) { return parts + static_cast<std::size_t>(rank) * bytes; };
  copy_bytes(operation_.receive, part(place_.rank), bytes);
  for (int rank = 0; rank < place_.world_size; ++rank)
    reduce_large(rank, rank == place_.rank ? static_cast<std::byte*>(operation_.receive) : part(rank));
}

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
    ring_->begin(operation_.signature, plan, cargo.root, [&](int rank, std::size_t block) {
      return node_.at(rank, plan.block(block).begin * element, plan.block(block).count() * element);
    });
    for (std::size_t turn = 0; turn < plan.turns(); ++turn) ring_->turn(turn, rail_deadline());
  }
  if (cargo.from_root && cargo.gets) {
    copy_bytes(cargo.data, node_.at(cargo.root, 0, operation_.bytes()), operation_.bytes());
    bytes_read_ += operation_.bytes();
  }
  wait_longer();
  node_.rounds().barrier();
}

// A block is copied to its rank's window in the turn before it is needed, and back when it has its result, after which
// the window is free. So there is one window more than there are blocks under way. The root's neighbours read the data
// in the same turn in which the root sends it.
void HierTransport::carry_through_windows(const Cargo& cargo, const RingPlan& plan) {
  const std::size_t element = size_of(operation_.signature.dtype);
  node_.need_windows(plan_of(RingPlan::Journey::kAllReduce).window() + 1, RingPlan::kBlockBytes, operation_.timeout);
  const auto own = [&](std::size_t block) { return cargo.data + plan.block(block).begin * element; };
  const auto bytes_of = [&](std::size_t block) { return plan.block(block).count() * element; };
  const auto give = [&](std::size_t block) {
    if (cargo.gives) copy_bytes(node_.window(local_rank(), block), own(block), bytes_of(block));
  };
  if (is_on_a_rail())
    ring_->begin(operation_.signature, plan, cargo.root,
                 [&](int rank, std::size_t block) { return node_.window(rank, block); });
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
    if (is_on_a_rail() && turn < plan.turns()) ring_->turn(turn, rail_deadline());
  }
}

}  // namespace lockstep::host
