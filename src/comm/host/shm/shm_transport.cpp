#include "src/comm/host/shm/shm_transport.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "lockstep/core/error.h"
#include "src/comm/host/reduce/reduce_kernels.h"

namespace lockstep::host {

namespace {

MachinePeers all_ranks(const ControlLayout& layout, SharedMemoryProvider* provider, int rank) {
  MachinePeers machine{layout, provider, rank, std::vector<int>(static_cast<std::size_t>(layout.ranks()))};
  std::iota(machine.ranks.begin(), machine.ranks.end(), 0);
  return machine;
}

}  // namespace

ShmTransport::ShmTransport(const Place& place, std::unique_ptr<SharedMemoryProvider> provider,
                           std::shared_ptr<SharedSegment> control, const Tuning& tuning,
                           std::chrono::milliseconds stall_timeout)
    : place_(place),
      tuning_(tuning),
      provider_(std::move(provider)),
      control_(std::move(control)),
      layout_(control_->data(), place.world_size),
      detector_({.place = place, .stall_timeout = stall_timeout}, all_ranks(layout_, provider_.get(), place.rank)),
      buffers_(*provider_, control_, place.rank, place.world_size, detector_),
      rounds_(buffers_.rounds()),
      channels_(layout_, place.rank, detector_),
      in_(static_cast<std::size_t>(place.world_size)),
      out_(static_cast<std::size_t>(place.world_size)) {}

ShmTransport::~ShmTransport() { leave(); }

void ShmTransport::execute(const Operation& operation) {
  rounds_.begin(operation);
  detector_.begins(operation);
  run_collective(operation, "host");
  detector_.finished();
}

void ShmTransport::compare(const Operation& operation) {
  rounds_.begin(operation);
  detector_.begins(operation);
  rounds_.barrier();
  detector_.finished();
}

// The ranks agree on the size, map, and agree on the outcome: if one rank cannot map, the others must not use memory
// that they believe to be shared.
Buffer ShmTransport::allocate(const Operation& operation) {
  rounds_.begin(operation);
  detector_.begins(operation);
  rounds_.barrier();
  const std::size_t bytes = operation.signature.count;
  std::string failure;
  auto segment = buffers_.share(RegisteredMemory::stride_of(bytes), operation.timeout, failure);
  if (!segment) throw Error("{}: {}", rounds_.doing(), failure);
  detector_.finished();
  return buffers_.add(std::move(segment), bytes);
}

// Callers that add the peers' values themselves do so in rank order.
std::vector<std::byte*> ShmTransport::peer_addresses(const void* data, std::size_t bytes) const {
  if (tuning_.reduce_order != ReduceOrder::kRank) return {};
  return buffers_.peer_addresses(data, bytes);
}

void ShmTransport::abort(const std::string& reason) {
  detector_.declare(GroupErrorKind::kPeerLost, fmt::format("rank {} aborted the group: {}", place_.rank, reason));
}

void ShmTransport::leave() noexcept {
  if (left_.exchange(true)) return;
  detector_.leave();
  provider_->close();
}

void ShmTransport::reduce(const Signature& call, int outputs, std::size_t count) {
  host::reduce({call.dtype, call.op, ranks(), outputs, in_.data(), out_.data(), count, tuning_.reduce_order});
}

void ShmTransport::read_from_peer(void* out, const std::byte* from, std::size_t bytes) {
  std::memcpy(out, from, bytes);
  count_read(bytes);
}

}  // namespace lockstep::host
