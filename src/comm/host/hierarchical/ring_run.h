// Runs a plan on one rail, turn by turn. See ring_plan.h.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/comm/operation.h"
#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/reduce/ring_plan.h"
#include "src/comm/host/wire/tcp_exchange.h"

namespace lockstep::host {

class RingRun {
 public:
  // Returns the address of block `index` in the buffer of the node's rank with that local rank.
  using BlockAt = std::function<std::byte*(int local_rank, std::size_t index)>;
  struct Node {
    int index;
    int ranks;       // on this node
    int local_rank;  // of this rank
    int all_ranks;   // in the group
    ReduceOrder order;
  };
  RingRun(const Node& node, TcpExchange& rail) : node_(node), rail_(rail) {}

  // The plan outlives the run. `root` is the only local rank that has the values of a broadcast on its first node, or
  // receives those of a reduce on the last; -1: all ranks do.
  void begin(const Signature& call, const RingPlan& plan, int root, BlockAt block_at);
  void turn(std::size_t turn, std::chrono::steady_clock::time_point deadline);

  // Bytes read from the memory of this node's other ranks, over all runs.
  std::uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  using Step = RingPlan::Step;

  void depart(const Step& step);
  void expect(const Step& step);
  void finish(const Step& step);
  void add_own_values(const std::byte* arrived, std::byte* const* out, int outputs, ReduceOp op, const Step& step);
  void reduce(const std::byte* const* in, int inputs, std::byte* const* out, int outputs, ReduceOp op,
              std::size_t count);
  // Address and length of a chunk in a local rank's buffer.
  std::byte* at(int local_rank, std::size_t block, int chunk) const;
  std::size_t count_of(std::size_t block, int chunk) const { return plan_->chunk(block, chunk).count(); }
  std::size_t bytes_of(std::size_t block, int chunk) const { return count_of(block, chunk) * size_of(call_.dtype); }
  std::byte* scratch(std::size_t block, int which) {
    return scratch_.data() + (block % plan_->window() * 2 + static_cast<std::size_t>(which % 2)) * scratch_bytes_;
  }
  // Ranks pass on sums, also for an average: only the last step divides.
  ReduceOp partial_op() const { return call_.op == ReduceOp::kAvg ? ReduceOp::kSum : call_.op; }

  const Node node_;
  TcpExchange& rail_;
  Signature call_;
  const RingPlan* plan_ = nullptr;
  int root_ = -1;
  BlockAt block_at_;
  std::vector<Step> begun_, under_way_;
  std::vector<const std::byte*> in_;
  std::vector<std::byte*> out_;
  std::vector<std::byte> scratch_;  // two chunks for each block under way: one arriving and one leaving
  std::size_t scratch_bytes_ = 0;
  std::atomic<std::uint64_t> bytes_read_{0};
};

}  // namespace lockstep::host
