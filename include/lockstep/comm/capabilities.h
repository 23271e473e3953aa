// The features and the promises of a backend, as plain data: one table in src/comm/backends.cpp, a few lines a backend.
//
// The process group refuses by it what a backend lacks, on all ranks alike; the conformance suite holds a backend to
// it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include "lockstep/comm/operation.h"
#include "lockstep/core/dtype.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Some of an enum's values.
template <typename Enum>
class SetOf {
 public:
  constexpr SetOf() = default;
  constexpr SetOf(std::initializer_list<Enum> members) {
    for (const Enum member : members) bits_ |= 1u << static_cast<unsigned>(member);
  }
  static constexpr SetOf first(int values) {
    SetOf set;
    set.bits_ = (1u << static_cast<unsigned>(values)) - 1;
    return set;
  }
  constexpr bool has(Enum value) const {
    return static_cast<unsigned>(value) < 32 && (bits_ >> static_cast<unsigned>(value) & 1) != 0;
  }
  constexpr SetOf without(SetOf others) const {
    SetOf set = *this;
    set.bits_ &= ~others.bits_;
    return set;
  }
  bool operator==(const SetOf&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

struct Capabilities {
  SetOf<OperationKind> operations = SetOf<OperationKind>::first(kOperationKinds);
  SetOf<DType> types = SetOf<DType>::first(kDTypes);
  SetOf<ReduceOp> reductions = SetOf<ReduceOp>::first(kReduceOps);
  bool messages = false;                 // send and recv
  bool moves_data = false;               // false: a world of one, whose rank's own data is the result
  bool same_bits_on_all_ranks = false;   // of floating-point reductions
  bool repeatable_bits = false;          // the same call on the same data gives the same bits again
  bool sums_in_rank_order = false;       // ((0 + 1) + 2) + 3, whatever the size, the memory and the path; all_reduce
                                         // between nodes of several ranks: see src/comm/host/reduce/ring_plan.h
  bool coalesced_equals_single = false;  // a coalesced reduction gives the bits of its calls made one by one
  bool idle_waiting = false;             // a rank that waits for long uses no processor
  bool abort = false;                    // wakes the waiters of other ranks too
  bool names_lost_peers =
      false;  // PeerLost with the rank as soon as it dies; false: the deadline, or the launcher, ends the wait
  bool counts_bytes = false;          // Backend::counters()
  bool ranks_may_be_threads = false;  // of one process
  bool gpu_memory = false;            // works on this rank's GPU's memory instead of the host's
  int most_ranks = std::numeric_limits<int>::max();
};

// The backends of this build, the default first.
std::vector<std::string_view> backend_names();
// Throws InvalidArgument that lists the ones built in.
const Capabilities& capabilities_of(std::string_view backend);

}  // namespace lockstep
#pragma GCC visibility pop
