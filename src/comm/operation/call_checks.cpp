#include "src/comm/operation/call_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr std::size_t kMostBytes = std::numeric_limits<std::size_t>::max() / 4;

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// The memory that a call reads and writes on this rank, in parts of `count` elements, and the offset of the smaller
// buffer in the larger one if the call is in place.
struct CallShape {
  std::size_t send_parts = 1;
  std::size_t receive_parts = 1;
  std::size_t in_place_part = 0;
};

CallShape shape_of(OperationKind kind, bool is_root, const Place& place) {
  const auto ranks = static_cast<std::size_t>(place.world_size), rank = static_cast<std::size_t>(place.rank);
  switch (kind) {
    case OperationKind::kBarrier:
    case OperationKind::kAllocate: return {0, 0, 0};
    case OperationKind::kAllReduce:
    case OperationKind::kBroadcast: return {1, 1, 0};
    case OperationKind::kReduce: return {1, is_root ? std::size_t{1} : 0, 0};
    case OperationKind::kAllGather: return {1, ranks, rank};
    case OperationKind::kGather: return {1, is_root ? ranks : 0, rank};
    case OperationKind::kScatter: return {is_root ? ranks : 0, 1, rank};
    case OperationKind::kReduceScatter: return {ranks, 1, rank};
    case OperationKind::kAllToAll: return {ranks, ranks, 0};
    case OperationKind::kAllGatherV:
    case OperationKind::kAllToAllV: break;
  }
  return {0, 0, 0};
}

void check_types(const Signature& call) {
  if (size_of(call.dtype) == 0)
    throw InvalidArgument("{}: {} is not an element type", name_of(call.kind), static_cast<int>(call.dtype));
  if (!is_reduction(call.kind)) return;
  if (call.op > ReduceOp::kPremulSum)
    throw InvalidArgument("{}: {} is not a reduction", name_of(call.kind), static_cast<int>(call.op));
  if (call.op == ReduceOp::kAvg && !is_float(call.dtype))
    throw InvalidArgument("{}: the average of {} is not defined, use a sum", name_of(call.kind), name_of(call.dtype));
  if (call.op == ReduceOp::kPremulSum && !is_float(call.dtype))
    throw InvalidArgument("{}: a pre-multiplied sum of {} is not defined, use a sum", name_of(call.kind),
                          name_of(call.dtype));
  const bool is_bitwise = call.op == ReduceOp::kBitAnd || call.op == ReduceOp::kBitOr || call.op == ReduceOp::kBitXor;
  if (is_bitwise && is_float(call.dtype))
    throw InvalidArgument("{}: {} of {} is not defined, bitwise operations are for integers", name_of(call.kind),
                          name_of(call.op), name_of(call.dtype));
}

void check_overlap(const Operation& operation, const CallShape& shape, const Place& place) {
  const std::size_t part = operation.bytes();
  const auto send = reinterpret_cast<std::uintptr_t>(operation.send),
             receive = reinterpret_cast<std::uintptr_t>(operation.receive);
  if (shape.send_parts == 0 || shape.receive_parts == 0) return;
  const bool send_is_larger = shape.send_parts > shape.receive_parts;
  const bool in_place =
      send_is_larger ? receive == send + shape.in_place_part * part : send == receive + shape.in_place_part * part;
  if (in_place || receive >= send + shape.send_parts * part || send >= receive + shape.receive_parts * part) return;
  throw InvalidArgument("{} on rank {}: `send` overlaps `receive`; in place they must be {}",
                        name_of(operation.signature.kind), place.rank,
                        shape.send_parts == shape.receive_parts ? "the same pointer"
                        : send_is_larger                        ? "receive = send + rank * count"
                                                                : "send = receive + rank * count");
}

// Data that is only moved is copied byte by byte and needs no alignment.
bool is_aligned(const Signature& call, const void* data) {
  return !is_reduction(call.kind) || reinterpret_cast<std::uintptr_t>(data) % size_of(call.dtype) == 0;
}

void check_alignment(const Signature& call, const Place& place, std::string_view which, const void* data) {
  const std::size_t element = size_of(call.dtype);
  if (is_aligned(call, data)) return;
  throw InvalidArgument("{} on rank {}: {} must be aligned to {} bytes, the size of {}; its address is {}",
                        name_of(call.kind), place.rank, which, element, name_of(call.dtype), fmt::ptr(data));
}

// Checks one buffer of parts of unequal length.
void check_parts(const Operation& operation, const Place& place, const char* which, const void* data,
                 const std::vector<std::size_t>& counts) {
  const Signature& call = operation.signature;
  if (counts.size() != static_cast<std::size_t>(place.world_size))
    throw InvalidArgument("{} on rank {}: {} counts for `{}`, the group has {} ranks", name_of(call.kind), place.rank,
                          counts.size(), which, place.world_size);
  std::size_t all = 0;
  for (const std::size_t count : counts)
    if (count > kMostBytes / size_of(call.dtype) || (all += count) > kMostBytes / size_of(call.dtype))
      throw InvalidArgument("{} on rank {}: the counts of `{}` exceed the size of memory", name_of(call.kind),
                            place.rank, which);
  if (all != 0 && data == nullptr)
    throw InvalidArgument("{} on rank {}: the pointer to {} is null", name_of(call.kind), place.rank, which);
}

bool are_apart(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto left = reinterpret_cast<std::uintptr_t>(a), right = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes == 0 || b_bytes == 0 || left >= right + b_bytes || right >= left + a_bytes;
}

void check_all_gather_v(const Operation& operation, const Place& place) {
  const auto& counts = operation.layout->receive_counts;
  const std::size_t element = size_of(operation.signature.dtype);
  check_parts(operation, place, "receive", operation.receive, counts);
  const std::size_t own = counts[static_cast<std::size_t>(place.rank)];
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + place.rank, std::size_t{0});
  if (own != 0 && operation.send == nullptr)
    throw InvalidArgument("{} on rank {}: the pointer to send is null", name_of(operation.signature.kind), place.rank);
  if (operation.send == static_cast<const std::byte*>(operation.receive) + before * element) return;
  if (!are_apart(operation.send, own * element, operation.receive, operation.bytes()))
    throw InvalidArgument("{} on rank {}: `send` overlaps `receive`; in place it must be this rank's part of `receive`",
                          name_of(operation.signature.kind), place.rank);
}

void check_all_to_all_v(const Operation& operation, const Place& place) {
  const Layout& layout = *operation.layout;
  check_parts(operation, place, "send", operation.send, layout.send_counts);
  check_parts(operation, place, "receive", operation.receive, layout.receive_counts);
  const std::size_t element = size_of(operation.signature.dtype);
  const auto bytes_of = [&](const std::vector<std::size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * element;
  };
  if (!are_apart(operation.send, bytes_of(layout.send_counts), operation.receive, bytes_of(layout.receive_counts)))
    throw InvalidArgument(
        "{} on rank {}: `send` overlaps `receive`; parts of unequal length cannot be exchanged in place",
        name_of(operation.signature.kind), place.rank);
}

// Each region is changed in place: one that appears twice would be summed twice.
void check_regions(const Operation& operation, const Place& place) {
  const Signature& call = operation.signature;
  std::vector<Region> by_address = operation.layout->regions;
  for (std::size_t i = 0; i < operation.layout->regions.size(); ++i) {
    const Region& region = operation.layout->regions[i];
    if (region.count > kMostBytes / size_of(call.dtype))
      throw InvalidArgument("coalesced {} on rank {}: buffer {} exceeds the size of memory", name_of(call.kind),
                            place.rank, i);
    if (region.count != 0 && region.data == nullptr)
      throw InvalidArgument("coalesced {} on rank {}: the pointer to buffer {} is null", name_of(call.kind), place.rank,
                            i);
    if (region.count != 0 && !is_aligned(call, region.data))
      check_alignment(call, place, fmt::format("buffer {}", i), region.data);
  }
  std::sort(by_address.begin(), by_address.end(),
            [](const Region& a, const Region& b) { return std::less<>()(a.data, b.data); });
  for (std::size_t i = 1; i < by_address.size(); ++i)
    if (!are_apart(by_address[i - 1].data, by_address[i - 1].count * size_of(call.dtype), by_address[i].data,
                   by_address[i].count * size_of(call.dtype)))
      throw InvalidArgument("coalesced {} on rank {}: two of the buffers overlap", name_of(call.kind), place.rank);
}

}  // namespace

void check_call(const Operation& operation, const Place& place) {
  const Signature& call = operation.signature;
  check_types(call);
  const bool has_root = call.kind == OperationKind::kBroadcast || call.kind == OperationKind::kReduce ||
                        call.kind == OperationKind::kGather || call.kind == OperationKind::kScatter;
  if (has_root && (call.root < 0 || call.root >= place.world_size))
    throw InvalidArgument("{}: root {} does not exist, the group has ranks 0..{}", name_of(call.kind), call.root,
                          place.world_size - 1);
  if (call.count >
      std::numeric_limits<std::size_t>::max() / size_of(call.dtype) / static_cast<std::size_t>(place.world_size) / 2)
    throw InvalidArgument("{}: {} elements of {} exceed the size of memory", name_of(call.kind), call.count,
                          name_of(call.dtype));
  if (call.kind == OperationKind::kAllGatherV) return check_all_gather_v(operation, place);
  if (call.kind == OperationKind::kAllToAllV) return check_all_to_all_v(operation, place);
  if (operation.layout) return check_regions(operation, place);
  if (call.count == 0) return;
  const CallShape shape = shape_of(call.kind, call.root == place.rank, place);
  const bool lacks_send = shape.send_parts != 0 && operation.send == nullptr;
  const bool lacks_receive = shape.receive_parts != 0 && operation.receive == nullptr;
  if (lacks_send || lacks_receive)
    throw InvalidArgument("{} of {} x {} on rank {}: the pointer to {} is null", name_of(call.kind),
                          name_of(call.dtype), call.count, place.rank,
                          lacks_send && lacks_receive ? "the data"
                          : lacks_send                ? "send"
                                                      : "receive");
  check_alignment(call, place, "send", operation.send);
  if (shape.receive_parts != 0) check_alignment(call, place, "receive", operation.receive);
  check_overlap(operation, shape, place);
}

void check_allocation(std::size_t bytes, const Place& place) {
  if (bytes > kMostBytes / static_cast<std::size_t>(place.world_size))
    throw InvalidArgument("allocate on rank {}: {} bytes exceed the size of memory", place.rank, bytes);
}

void check_message(const Message& message, bool is_receive, const Place& place) {
  const std::string what = is_receive ? describe_receive(message) : describe_send(message);
  if (size_of(message.dtype) == 0)
    throw InvalidArgument("{}: {} is not an element type", what, static_cast<int>(message.dtype));
  const bool exists = message.peer >= 0 && message.peer < place.world_size;
  if (!exists && !(is_receive && message.peer == kAnyRank))
    throw InvalidArgument("{} on rank {}: the group has ranks 0..{}", what, place.rank, place.world_size - 1);
  if (message.tag < 0) throw InvalidArgument("{} on rank {}: tags must be >= 0", what, place.rank);
  if (message.count > kMostBytes / size_of(message.dtype))
    throw InvalidArgument("{}: its data exceeds the size of memory", what);
  if (message.count != 0 && message.data == nullptr)
    throw InvalidArgument("{} on rank {}: the pointer to the data is null", what, place.rank);
}

namespace {

template <typename Enum> std::string list_of(const SetOf<Enum>& set, int values) {
  std::string names;
  for (int i = 0; i < values; ++i)
    if (set.has(static_cast<Enum>(i)))
      names += (names.empty() ? "" : ", ") + std::string(name_of(static_cast<Enum>(i)));
  return names.empty() ? "none" : names;
}

// "; choose another backend for it: host (LOCKSTEP_BACKEND)": lists the backends of this build that support more than
// one rank and the same memory.
template <typename Has> std::string who_has_it(bool gpu_memory, Has&& has) {
  std::string names;
  for (const std::string_view name : backend_names())
    if (const Capabilities& capabilities = capabilities_of(name);
        capabilities.moves_data && capabilities.gpu_memory == gpu_memory && has(capabilities))
      names += (names.empty() ? "" : ", ") + std::string(name);
  return names.empty()
             ? ""
             : "; choose another backend for it: " + names + " (LOCKSTEP_BACKEND or ProcessGroupOptions::backend)";
}

}  // namespace

void check_capabilities(const Signature& call, const Capabilities& capabilities, std::string_view backend) {
  const auto lacks = [&call](const Capabilities& all) {
    if (!all.operations.has(call.kind)) return 1;
    if (call.kind == OperationKind::kBarrier || call.kind == OperationKind::kAllocate) return 0;
    if (!all.types.has(call.dtype)) return 2;
    return is_reduction(call.kind) && !all.reductions.has(call.op) ? 3 : 0;
  };
  const int lacking = lacks(capabilities);
  if (lacking == 0 || size_of(call.dtype) == 0 || call.op > ReduceOp::kPremulSum)
    return;  // check_call() checks the latter
  const std::string others =
      who_has_it(capabilities.gpu_memory, [&](const Capabilities& all) { return lacks(all) == 0; });
  if (lacking == 1)
    throw InvalidArgument("{}: backend '{}' does not support this operation; it supports {}{}", name_of(call.kind),
                          backend, list_of(capabilities.operations, kOperationKinds), others);
  if (lacking == 2)
    throw InvalidArgument("{}: backend '{}' does not support {}; it supports {}{}", name_of(call.kind), backend,
                          name_of(call.dtype), list_of(capabilities.types, kDTypes), others);
  throw InvalidArgument("{} of {}: backend '{}' does not support the reduction {}; it supports {}{}",
                        name_of(call.kind), name_of(call.dtype), backend, name_of(call.op),
                        list_of(capabilities.reductions, kReduceOps), others);
}

void check_capabilities(const Message& message, bool is_receive, const Capabilities& capabilities,
                        std::string_view backend) {
  if (capabilities.messages) return;
  throw InvalidArgument("{}: backend '{}' does not support messages{}",
                        is_receive ? describe_receive(message) : describe_send(message), backend,
                        who_has_it(capabilities.gpu_memory, [](const Capabilities& all) { return all.messages; }));
}

}  // namespace lockstep
