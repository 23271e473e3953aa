// The cost of a collective's data movement alone: the same reads and writes on the same registered buffers, without
// barriers, checks and waiting. Each rank makes one such pass; the slowest rank's time is the bound with which results
// are compared.
//   all_reduce                each rank reduces its 1/n of the message: n reads and n writes per element (host::reduce)
//   reduce, reduce_scatter    the same with one write
//   broadcast, all_gather,
//   gather, scatter, all_to_all   each rank copies what it needs from its peers' buffers (memcpy)
//   sendrecv                  the odd rank copies what the even one sends
// There is no bound for unregistered memory, over TCP and for other backends (peers' buffers are not accessible), for a
// world of one, for barrier, and for all_to_all in place, which needs more than one pass.
#pragma once

#include <memory>
#include <vector>

#include "bench/lib/collective_kind.h"

namespace lockstep::bench {

// The addresses of the ranks' parts of one registered buffer in this process.
class SharedParts {
 public:
  // Collective. Finds the other parts from this rank's; throws Error if they do not contain what the peers wrote there.
  SharedParts(ProcessGroup& group, const Buffer& mine);
  std::byte* of(int rank) const { return first_ + static_cast<std::size_t>(rank) * stride_; }

 private:
  std::byte* first_;
  std::size_t stride_;
};

// True if registered buffers of this group are in memory that all ranks have mapped.
bool has_shared_parts(ProcessGroup& group);

class Bound {
 public:
  // `memories` has the message's addresses by rank. `kind` must have a bound (see above).
  Bound(const CollectiveKind& kind, const MessageLayout& layout, const Call& call, int rank, std::vector<Memory> ends);
  static bool exists(const CollectiveKind& kind, const MessageLayout& layout);
  void run();

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
  };
  void plan_reduction(const CollectiveKind& kind, int rank);
  void plan_copies(const CollectiveKind& kind, int rank);

  MessageLayout layout_;
  Call call_;
  std::vector<Memory> ends_;
  std::vector<Copy> copies_;  // one per part
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::size_t count_ = 0;  // number of elements that this rank reduces
};

}  // namespace lockstep::bench
