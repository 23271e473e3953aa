// The features and guarantees of a backend, as plain data. src/comm/backends.cpp has the table.
//
// The process group refuses on all ranks what a backend does not support; the conformance suite tests the guarantees.
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

// A set of an enum's values, which are below 32.
template <typename Enum> class SetOf {
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
  bool messages = false;                // send and recv
  bool moves_data = false;              // false: only for a world of one, whose own data is the result
  bool same_bits_on_all_ranks = false;  // floating-point reductions give all ranks the same bits
  bool repeatable_bits = false;         // the same call on the same data gives the same bits each time
  // Sums of floating-point numbers are ((0 + 1) + 2) + 3 for every size, memory and path. Exception: all_reduce among
  // nodes with several ranks, see src/comm/host/reduce/ring_plan.h.
  bool sums_in_rank_order = false;
  bool coalesced_equals_single = false;  // coalesced calls give the same bits as separate calls
  bool idle_waiting = false;             // a rank that waits for long uses no CPU time
  bool abort = false;                    // abort() also wakes the other ranks
  // PeerLost names a rank as soon as it dies; else the deadline or the launcher ends the wait.
  bool names_lost_peers = false;
  bool counts_bytes = false;          // Backend::counters() counts
  bool ranks_may_be_threads = false;  // ranks may be threads of one process
  bool gpu_memory = false;            // works on the memory of this rank's GPU instead of host memory
  int most_ranks = std::numeric_limits<int>::max();
};

// The names of the backends in this build, the default first.
std::vector<std::string_view> backend_names();
// Throws InvalidArgument for an unknown name, with a list of the known ones.
const Capabilities& capabilities_of(std::string_view backend);

}  // namespace lockstep
#pragma GCC visibility pop
