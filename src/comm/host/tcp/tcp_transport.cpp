#include "src/comm/host/tcp/tcp_transport.h"

#include <fmt/format.h>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/comm/host/machine/thread_memory_provider.h"
#include "src/comm/rendezvous/group_rendezvous.h"

namespace lockstep::host {

TcpTransport::TcpTransport(const Place& place, std::vector<TcpPeer> peers, std::vector<TcpPeer> message_peers,
                           std::unique_ptr<FailureDetector> detector, ReduceOrder order)
    : place_(place),
      order_(order),
      peers_(std::move(peers)),
      detector_(std::move(detector)),
      channels_(place.rank, std::move(message_peers), *detector_),
      ends_(*detector_),
      exchange_(place.rank, peers_, ends_.events()),
      in_(static_cast<std::size_t>(place.world_size)) {
  detector_->on_over([this] { hang_up(); });
}

TcpTransport::~TcpTransport() {
  say_goodbye();
  detector_->stop();  // or it would close connections that are being destroyed
}

// Wakes every thread that waits for a peer, on both sides. Called by the thread that receives the group error.
void TcpTransport::hang_up() noexcept {
  shut_down(peers_);
  channels_.hang_up();
}

void TcpTransport::abort(const std::string& reason) {
  detector_->declare(GroupErrorKind::kPeerLost, fmt::format("rank {} aborted the group: {}", place_.rank, reason));
}

// An operation on the communication thread needs the sockets; in that case the destructor, which runs after it, sends
// the goodbye.
void TcpTransport::leave() noexcept {
  if (!busy_.try_lock()) return;
  left_ = true;
  say_goodbye();
  busy_.unlock();
}

void TcpTransport::say_goodbye() noexcept {
  if (std::exchange(said_goodbye_, true)) return;
  detector_->leave();  // first: no connection may end before
  send_goodbye(peers_);
}

void TcpTransport::execute(const Operation& operation) {
  const std::lock_guard lock(busy_);
  begin(operation);
  run_collective(operation, "host");
  detector_->finished();
}

void TcpTransport::compare(const Operation& operation) {
  const std::lock_guard lock(busy_);
  begin(operation);
  run_exchange();
  detector_->finished();
}

void TcpTransport::begin(const Operation& operation) {
  operation_ = &operation;
  ends_.begin(operation);
  detector_->throw_if_over([&] { return describe(operation.signature, operation.purpose); });
  if (left_) throw PeerLost("{}: this rank has left the group", describe(operation.signature, operation.purpose));
  detector_->begins(operation);
  exchange_.begin(header_of(operation));
}

// Nothing is shared: these are plain pages. The call is collective all the same, so that programs behave alike with
// both transports.
Buffer TcpTransport::allocate(const Operation& operation) {
  compare(operation);
  const std::size_t bytes = operation.signature.count;
  std::shared_ptr<SharedSegment> segment;
  try {
    segment = map_private_segment(std::max<std::size_t>(bytes, 1));
  } catch (const Error& error) {  // the others have theirs, and would wait for this rank
    ends_.end(GroupErrorKind::kFailed, fmt::format("rank {} cannot go on: {}", place_.rank, error.what()));
  }
  std::byte* data = segment->data();
  return Buffer(data, bytes, &cpu_device(), [segment = std::move(segment)]() mutable { segment.reset(); });
}

void TcpTransport::run_exchange() {
  exchange_.run(ends_.started() + operation_->timeout);
  bytes_sent_.store(exchange_.payload_bytes_sent(), std::memory_order_relaxed);
}

std::unique_ptr<FailureDetector> make_failure_detector(const BackendContext& context, const MachinePeers* machine) {
  auto links = connect_mesh(context, "watch");
  try {
    return std::make_unique<FailureDetector>(
        FailureDetectorOptions{
            .place = context.place, .stall_timeout = context.stall_timeout, .store_timeout = context.store_timeout},
        std::move(links), machine);
  } catch (const RendezvousError&) {
    throw_if_a_rank_has_exited(context);
    throw;
  }
}

std::unique_ptr<Transport> make_tcp_transport(const BackendContext& context, ReduceOrder order) {
  auto peers = connect_mesh(context, "tcp", wanted_sockets_per_peer(context.place.world_size));
  auto message_peers = connect_mesh(context, "tcp-messages");
  auto detector = make_failure_detector(context, nullptr);
  return std::make_unique<TcpTransport>(context.place, std::move(peers), std::move(message_peers), std::move(detector),
                                        order);
}

}  // namespace lockstep::host
