#include "src/comm/ring/shm_transport.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "lockstep/core/error.h"
#include "src/comm/ring/reduce_kernels.h"

namespace lockstep::ring {

namespace {

WatchedMachine everybody(const ControlLayout& layout, LocalFabric* fabric, int rank) {
  WatchedMachine machine{layout, fabric, rank, std::vector<int>(static_cast<std::size_t>(layout.ranks()))};
  std::iota(machine.ranks.begin(), machine.ranks.end(), 0);
  return machine;
}

}  // namespace

ShmTransport::ShmTransport(const Place& place, std::unique_ptr<LocalFabric> fabric, std::shared_ptr<SharedSegment> control,
                           const Tuning& tuning, std::chrono::milliseconds stall_timeout)
    : place_(place),
      tuning_(tuning),
      fabric_(std::move(fabric)),
      control_(std::move(control)),
      layout_(control_->data(), place.world_size),
      watch_({.place = place, .stall_timeout = stall_timeout}, everybody(layout_, fabric_.get(), place.rank)),
      rounds_(layout_, place.rank, watch_),
      channels_(layout_, place.rank, watch_),
      memory_(std::make_shared<RegisteredMemory>(place.rank)),
      in_(static_cast<std::size_t>(place.world_size)),
      out_(static_cast<std::size_t>(place.world_size)),
      offsets_(static_cast<std::size_t>(place.world_size)) {}

ShmTransport::~ShmTransport() { leave(); }

void ShmTransport::execute(const Operation& operation) {
  rounds_.begin(operation);
  watch_.begins(operation);
  dispatch(operation);
  watch_.finished();
}

void ShmTransport::compare(const Operation& operation) {
  rounds_.begin(operation);
  watch_.begins(operation);
  rounds_.barrier();
  watch_.finished();
}

void ShmTransport::dispatch(const Operation& operation) {
  switch (operation.signature.kind) {
    case OperationKind::kBarrier:
      return rounds_.barrier();
    case OperationKind::kBroadcast:
      return broadcast(operation);
    case OperationKind::kAllReduce:
      return all_reduce(operation);
    case OperationKind::kAllGather:
      return all_gather(operation);
    case OperationKind::kReduce:
      return reduce_to_root(operation);
    case OperationKind::kGather:
      return gather(operation);
    case OperationKind::kScatter:
      return scatter(operation);
    case OperationKind::kReduceScatter:
      return reduce_scatter(operation);
    case OperationKind::kAllToAll:
      return all_to_all(operation);
    case OperationKind::kAllGatherV:
      return all_gather_v(operation);
    case OperationKind::kAllToAllV:
      return all_to_all_v(operation);
    case OperationKind::kAllocate:
      break;
  }
  LOCKSTEP_CHECK(false, "ring: cannot execute {}", name_of(operation.signature.kind));
}

// Agree on the size, map, and agree on the outcome: a rank that could not map must not leave the others with memory that
// they believe to be shared.
Buffer ShmTransport::allocate(const Operation& operation) {
  rounds_.begin(operation);
  watch_.begins(operation);
  rounds_.barrier();
  const std::size_t bytes = operation.signature.count;
  std::shared_ptr<SharedSegment> segment;
  std::string failure;
  try {
    segment = fabric_->share(RegisteredMemory::stride_of(bytes) * static_cast<std::size_t>(ranks()), operation.timeout);
  } catch (const Error& error) {
    failure = error.what();
  }
  std::byte* said = rounds_.payload();
  said[0] = std::byte{failure.empty() ? std::uint8_t{0} : std::uint8_t{1}};
  rounds_.publish();
  std::string failed_ranks;
  for (int rank = 0; rank < ranks(); ++rank) {
    const bool failed = rank == place_.rank ? !failure.empty() : rounds_.await(rank).payload[0] != std::byte{0};
    if (failed) failed_ranks += fmt::format("{}{}", failed_ranks.empty() ? "" : ", ", rank);
  }
  if (!failed_ranks.empty())
    throw Error("{}: registered memory could not be mapped on rank {}{}", rounds_.doing(), failed_ranks,
                failure.empty() ? "; see its own message" : ": " + failure);
  watch_.finished();
  return RegisteredMemory::add(memory_, std::move(segment), bytes);
}

void ShmTransport::abort(const std::string& reason) {
  watch_.declare(VerdictKind::kPeerLost, fmt::format("rank {} aborted the group: {}", place_.rank, reason));
}

void ShmTransport::leave() noexcept {
  if (left_.exchange(true)) return;
  watch_.leave();
  fabric_->close();
}

// The round that begins a large operation.
ShmTransport::Places ShmTransport::locate(const void* data, std::size_t bytes) {
  static_assert(sizeof(Location) <= kLinePayload);
  Places places{false, memory_->find(data, bytes)};
  const Location mine = places.mine.location;
  std::memcpy(rounds_.payload(), &mine, sizeof mine);
  rounds_.publish();
  places.direct = mine.segment != 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    Location theirs = mine;
    if (rank != place_.rank) std::memcpy(&theirs, rounds_.await(rank).payload, sizeof theirs);
    if (theirs.segment != mine.segment) places.direct = false;
    offsets_[static_cast<std::size_t>(rank)] = theirs.offset;
  }
  return places;
}

void ShmTransport::reduce(const Signature& call, int outputs, std::size_t count) {
  ring::reduce({call.dtype, call.op, ranks(), outputs, in_.data(), out_.data(), count, tuning_.reduce_order});
}

void ShmTransport::read_from_peer(void* out, const std::byte* from, std::size_t bytes) {
  std::memcpy(out, from, bytes);
  count_read(bytes);
}

}  // namespace lockstep::ring
