// A collective call as plain data, which the process group passes to a backend.
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

// kAvg is the sum times 1 / ranks, for floating point only. The bitwise operations are for integers only. kPremulSum
// multiplies each rank's values by its own CallOptions::factor, rounds them to the element type, and adds them;
// floating point only.
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
  kAllGatherV,  // with parts of different lengths, as MPI's V calls
  kAllToAllV,
};
inline constexpr int kOperationKinds = 12, kReduceOps = 9;
bool is_reduction(OperationKind kind);

std::string_view name_of(ReduceOp op);         // "sum", "avg", ...
std::string_view name_of(OperationKind kind);  // "all_reduce", ...

// The purpose of a call, so that an error can name "bucket 2". Names are string literals, which are not copied.
struct Purpose {
  const char* name = nullptr;  // "bucket", "parameter check"; null: no purpose given
  std::int32_t index = -1;     // -1: no index
};

// A part of a coalesced call, which is reduced or broadcast in place.
struct Region {
  void* data = nullptr;
  std::size_t count = 0;  // elements
};

// The division of a call's data where a count alone does not describe it. Copies of the call share it.
struct Layout {
  std::vector<std::size_t> send_counts;  // kAllToAllV: elements for each rank; the parts are contiguous, in rank order
  std::vector<std::size_t> receive_counts;  // kAllToAllV and kAllGatherV: elements from each rank
  std::vector<Region> regions;              // the buffers of a coalesced kAllReduce or kBroadcast
};
// Hash of the part of a layout that must be equal on all ranks; never 0. (The counts of kAllToAllV differ between
// ranks: backends compare the count that one rank sends with the count that the other expects.)
std::uint64_t hash_of(const Layout& layout);

// A rank's position in the training. The ranks compare it in the first call of each backward pass; `pass` is 0 in all
// other calls. The fields have at most 4 bytes, larger values are hashed, so that the state travels with every call.
struct PassState {
  std::uint32_t wrapper = 0;  // number of the wrapper in the group, from 1
  std::uint32_t pass = 0;     // number among the wrapper's passes that are reduced, from 1
  std::uint32_t batch = 0;    // of the loader that this thread reads, without those gathered under no_sync(); 0: none
  std::uint32_t begun = 0;    // zero_grad() calls of the wrapper's optimizers
  std::uint32_t updates = 0;  // step() calls of the wrapper's optimizers
  float lr = 0;               // learning rate of the first parameter group
  std::uint32_t rates = 0;    // hash of the learning rates of all groups
  std::uint32_t trained = 0;  // number of parameters that require a gradient
  std::uint32_t trained_hash = 0;  // hash of which parameters those are
  std::uint32_t weights = 0;       // hash of some of the weights
  std::uint64_t earlier = 0;  // hash of the states of earlier passes that no call has compared yet; 0: there are none
};
static_assert(sizeof(PassState) == 48);
std::uint64_t hash_of(const PassState& pass);  // 0 when `pass.pass` is 0

// The values on which all ranks must agree in one call: 48 plain bytes, which travel in front of the data.
struct Signature {
  std::uint64_t sequence = 0;  // number of the operation in the group, from 1
  std::uint64_t count = 0;     // elements; of one part where each rank has its own (all_gather, scatter, ...);
                               // of all parts in kAllGatherV, of all regions in a coalesced call; 0 in kAllToAllV
  std::uint64_t layout = 0;    // hash_of(Layout), 0 without a layout
  std::uint64_t pass = 0;      // hash_of(PassState), 0 without a state
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reserved = 0;
  std::int32_t root = -1;  // -1: the operation has no root
  std::int32_t purpose_index = -1;
  std::uint32_t purpose_hash = 0;

  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 48);

// The continuation that Work::then() queues among the operations; empty for an operation that is itself a call.
struct ChainedWork {
  Continuation run = {};
  const void* group = nullptr;  // the group on which the continuation may make a call
  bool makes_call = false;      // the continuation makes one call, with the number in the operation's signature
};

struct Operation {
  Signature signature;
  const void* send = nullptr;
  void* receive = nullptr;               // equal to `send` when in place
  std::shared_ptr<const Layout> layout;  // null: the count describes the data completely
  double factor = 1;                     // kPremulSum: this rank's factor
  Purpose purpose;
  PassState pass;                        // for the message of a mismatch
  std::chrono::milliseconds timeout{0};  // deadline of this call, counted from its start
  FlightNote flight;
  ChainedWork chained = {};

  std::size_t bytes() const { return signature.count * size_of(signature.dtype); }  // of `signature.count` elements
};

inline constexpr int kAnyRank = -1;

// One end of a message between two ranks, apart from the collectives. A send and a receive match by (sender, tag), in
// the order of sending.
struct Message {
  void* data = nullptr;  // only read when sending
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  int peer = 0;           // destination of a send; source of a receive, or kAnyRank
  std::int32_t tag = 0;   // >= 0
  int* sender = nullptr;  // for a receive: set to the source rank, unless null
  std::chrono::milliseconds timeout{0};
  FlightNote flight = {};

  std::size_t bytes() const { return count * size_of(dtype); }
};
std::string describe_send(const Message& message);     // "send to rank 2 (tag 7, float32 x 100)"
std::string describe_receive(const Message& message);  // "recv from any rank (tag 7, float32 x 100)"

// "all_reduce #41 (bucket 2, float32 x 262144, sum)": the form in which all messages name a call.
std::string describe(const Signature& signature, const Purpose& purpose);

}  // namespace lockstep
#pragma GCC visibility pop
