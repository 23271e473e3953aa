// One collective call, as plain data: what the process group hands to a backend.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/dtype.h"

namespace lockstep {

// kAvg: the sum times 1 / ranks, floating point only; the bitwise ones: integers only.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };
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
};
bool is_reduction(OperationKind kind);

std::string_view name_of(ReduceOp op);         // "sum", "avg", ...
std::string_view name_of(OperationKind kind);  // "all_reduce", ...

// What a call is for, so that an error can say "bucket 2". Names are string literals: nothing is copied.
struct Purpose {
  const char* name = nullptr;  // "bucket", "parameter check"; null: nothing to say
  std::int32_t index = -1;     // -1: no index
};

// What all ranks must agree on in one call. 32 bytes, plain, comparable: it travels in front of the data.
struct Signature {
  std::uint64_t sequence = 0;  // the how-many-th operation of the group, from 1
  std::uint64_t count = 0;     // elements; where every rank has a part of its own (all_gather, scatter, ...): of one part
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reserved = 0;
  std::int32_t root = -1;  // -1: the operation has none
  std::int32_t purpose_index = -1;
  std::uint32_t purpose_hash = 0;

  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 32);

struct Operation {
  Signature signature;
  const void* send = nullptr;
  void* receive = nullptr;  // equal to `send` when in place
  Purpose purpose;
  std::chrono::milliseconds timeout{0};  // this call's deadline, counted from its start

  std::size_t bytes() const { return signature.count * size_of(signature.dtype); }  // of `signature.count` elements
};

// "all_reduce #41 (bucket 2, float32 x 262144, sum)": how every message names a call.
std::string describe(const Signature& signature, const Purpose& purpose);

}  // namespace lockstep
