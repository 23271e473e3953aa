#include "src/comm/call_checks.h"

#include <cstdint>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// What a call reads and writes on this rank, in parts of `count` elements, and where in the larger buffer the smaller one
// lies when the call works in place.
struct Shape {
  std::size_t send_parts = 1;
  std::size_t receive_parts = 1;
  std::size_t in_place_part = 0;
};

Shape shape_of(OperationKind kind, bool is_root, const Place& place) {
  const auto ranks = static_cast<std::size_t>(place.world_size), rank = static_cast<std::size_t>(place.rank);
  switch (kind) {
    case OperationKind::kBarrier:
    case OperationKind::kAllocate:
      return {0, 0, 0};
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast:
      return {1, 1, 0};
    case OperationKind::kReduce:
      return {1, is_root ? std::size_t{1} : 0, 0};
    case OperationKind::kAllGather:
      return {1, ranks, rank};
    case OperationKind::kGather:
      return {1, is_root ? ranks : 0, rank};
    case OperationKind::kScatter:
      return {is_root ? ranks : 0, 1, rank};
    case OperationKind::kReduceScatter:
      return {ranks, 1, rank};
    case OperationKind::kAllToAll:
      return {ranks, ranks, 0};
  }
  return {};
}

void check_types(const Signature& call) {
  if (size_of(call.dtype) == 0) throw InvalidArgument("{}: {} is no element type", name_of(call.kind), static_cast<int>(call.dtype));
  if (!is_reduction(call.kind)) return;
  if (call.op == ReduceOp::kAvg && !is_float(call.dtype))
    throw InvalidArgument("{}: the average of {} is not defined, use a sum", name_of(call.kind), name_of(call.dtype));
  const bool is_bitwise = call.op == ReduceOp::kBitAnd || call.op == ReduceOp::kBitOr || call.op == ReduceOp::kBitXor;
  if (is_bitwise && is_float(call.dtype))
    throw InvalidArgument("{}: {} of {} is not defined, bitwise operations are for integers", name_of(call.kind), name_of(call.op),
                          name_of(call.dtype));
}

void check_overlap(const Operation& operation, const Shape& shape, const Place& place) {
  const std::size_t part = operation.bytes();
  const auto send = reinterpret_cast<std::uintptr_t>(operation.send), receive = reinterpret_cast<std::uintptr_t>(operation.receive);
  if (shape.send_parts == 0 || shape.receive_parts == 0) return;
  const bool send_is_larger = shape.send_parts > shape.receive_parts;
  const bool in_place = send_is_larger ? receive == send + shape.in_place_part * part : send == receive + shape.in_place_part * part;
  if (in_place || receive >= send + shape.send_parts * part || send >= receive + shape.receive_parts * part) return;
  throw InvalidArgument("{} on rank {}: `send` overlaps `receive`; in place they must be {}", name_of(operation.signature.kind), place.rank,
                        shape.send_parts == shape.receive_parts ? "the same pointer"
                        : send_is_larger                        ? "receive = send + rank * count"
                                                                : "send = receive + rank * count");
}

}  // namespace

void check_call(const Operation& operation, const Place& place) {
  const Signature& call = operation.signature;
  check_types(call);
  const bool has_root = call.kind == OperationKind::kBroadcast || call.kind == OperationKind::kReduce ||
                        call.kind == OperationKind::kGather || call.kind == OperationKind::kScatter;
  if (has_root && (call.root < 0 || call.root >= place.world_size))
    throw InvalidArgument("{}: root {} does not exist, the group has ranks 0..{}", name_of(call.kind), call.root, place.world_size - 1);
  if (call.count > std::numeric_limits<std::size_t>::max() / size_of(call.dtype) / static_cast<std::size_t>(place.world_size) / 2)
    throw InvalidArgument("{}: {} elements of {} are more than memory holds", name_of(call.kind), call.count, name_of(call.dtype));
  if (call.count == 0) return;
  const Shape shape = shape_of(call.kind, call.root == place.rank, place);
  const bool lacks_send = shape.send_parts != 0 && operation.send == nullptr;
  const bool lacks_receive = shape.receive_parts != 0 && operation.receive == nullptr;
  if (lacks_send || lacks_receive)
    throw InvalidArgument("{} of {} x {} on rank {}: the pointer to {} is null", name_of(call.kind), name_of(call.dtype), call.count,
                          place.rank,
                          lacks_send && lacks_receive ? "the data"
                          : lacks_send                ? "send"
                                                      : "receive");
  check_overlap(operation, shape, place);
}

}  // namespace lockstep
