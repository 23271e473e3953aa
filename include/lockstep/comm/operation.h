// One collective call, as plain data, which the process group hands to a backend.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/flight_note.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/dtype.h"

#pragma GCC visibility push(default)
namespace lockstep {

// kAvg: the sum times 1 / ranks, floating point only; the bitwise ones: integers only. kPremulSum: every rank's values
// times its own CallOptions::factor, rounded to the element type, then summed; floating point only.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor, kPremulSum };
enum class OperationKind : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kAllGather,
  kAllocate,
  kReduce,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kAllGatherV,  // the parts differ in length; so in MPI's names
  kAllToAllV,
};
inline constexpr int kOperationKinds = 12, kReduceOps = 9;
bool is_reduction(OperationKind kind);

std::string_view name_of(ReduceOp op);         // "sum", "avg", ...
std::string_view name_of(OperationKind kind);  // "all_reduce", ...

// The purpose of a call, so that an error can say "bucket 2". Names are string literals: nothing is copied.
struct Purpose {
  const char* name = nullptr;  // "bucket", "parameter check"; null: nothing to say
  std::int32_t index = -1;     // -1: no index
};

// Part of a coalesced call: reduced or broadcast in place.
struct Region {
  void* data = nullptr;
  std::size_t count = 0;  // elements
};

// How a call's data is divided when a count does not say it all. Made once, shared by the copies of the call.
struct Layout {
  std::vector<std::size_t> send_counts;     // elements by rank, one part after the other; kAllToAllV
  std::vector<std::size_t> receive_counts;  // the same; kAllToAllV and kAllGatherV
  std::vector<Region> regions;              // of a coalesced kAllReduce or kBroadcast
};
// A hash of the part of a layout on which all ranks must agree; never 0. (Counts in kAllToAllV differ by nature:
// backends compare what one rank sends with what the other receives.)
std::uint64_t hash_of(const Layout& layout);

// A rank's position in a training. The ranks compare it in the first call of each backward pass; `pass` is 0 in all
// other calls. Numbers of 4 bytes, so that it travels with every call: what is larger is there as a hash.
struct PassState {
  std::uint32_t wrapper = 0;  // the how-many-th of the group, from 1
  std::uint32_t pass = 0;     // of the wrapper's passes that are reduced, from 1
  std::uint32_t batch =
      0;  // of the loader's pass at which the thread stands, less those that no_sync() gathered; 0: none
  std::uint32_t begun = 0;         // zero_grad()s of the wrapper's optimizers
  std::uint32_t updates = 0;       // step()s of them
  float lr = 0;                    // of their first group
  std::uint32_t rates = 0;         // hash of the learning rates of all their groups
  std::uint32_t trained = 0;       // how many parameters want a gradient
  std::uint32_t trained_hash = 0;  // which of them
  std::uint32_t weights = 0;       // hash of some of the weights
  std::uint64_t earlier = 0;       // hash of the states of earlier passes that no call has compared; 0: none
};
static_assert(sizeof(PassState) == 48);
std::uint64_t hash_of(const PassState& pass);  // 0 for none

// The values on which all ranks must agree in one call. 48 bytes, plain, comparable: it travels in front of the data.
struct Signature {
  std::uint64_t sequence = 0;  // the how-many-th operation of the group, from 1
  std::uint64_t count = 0;  // elements; where every rank has a part of its own (all_gather, scatter, ...): of one part;
                            // of all parts in kAllGatherV, of all regions of a coalesced call, 0 in kAllToAllV
  std::uint64_t layout = 0;  // hash_of(Layout), 0 without one
  std::uint64_t pass = 0;    // hash_of(PassState), 0 without one
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reserved = 0;
  std::int32_t root = -1;  // -1: the operation has none
  std::int32_t purpose_index = -1;
  std::uint32_t purpose_hash = 0;

  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 48);

// What Work::then() queues among the operations. Empty in a call's own operation.
struct ChainedWork {
  Continuation run = {};
  const void* group = nullptr;  // whose call it may make
  bool makes_call = false;      // one, by the number of the operation's signature
};

struct Operation {
  Signature signature;
  const void* send = nullptr;
  void* receive = nullptr;               // equal to `send` when in place
  std::shared_ptr<const Layout> layout;  // null: the count says it all
  double factor = 1;                     // of kPremulSum, this rank's
  Purpose purpose;
  PassState pass;                        // for the message when the ranks' differ
  std::chrono::milliseconds timeout{0};  // this call's deadline, counted from its start
  FlightNote flight;
  ChainedWork chained = {};

  std::size_t bytes() const { return signature.count * size_of(signature.dtype); }  // of `signature.count` elements
};

inline constexpr int kAnyRank = -1;

// One end of a message from rank to rank: apart from the collectives, matched by (sender, tag) in the order of sending.
struct Message {
  void* data = nullptr;  // a sender's is only read
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  int peer = 0;           // whom to send to; whom to receive from, or kAnyRank
  std::int32_t tag = 0;   // >= 0
  int* sender = nullptr;  // of a receive: set to the rank that it came from, if not null
  std::chrono::milliseconds timeout{0};
  FlightNote flight = {};

  std::size_t bytes() const { return count * size_of(dtype); }
};
std::string describe_send(const Message& message);     // "send to rank 2 (tag 7, float32 x 100)"
std::string describe_receive(const Message& message);  // "recv from any rank (tag 7, float32 x 100)"

// "all_reduce #41 (bucket 2, float32 x 262144, sum)": how every message names a call.
std::string describe(const Signature& signature, const Purpose& purpose);

}  // namespace lockstep
#pragma GCC visibility pop
