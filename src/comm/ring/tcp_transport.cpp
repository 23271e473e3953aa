#include "src/comm/ring/tcp_transport.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/comm/ring/thread_fabric.h"

namespace lockstep::ring {

namespace {

using Clock = std::chrono::steady_clock;

// All connections of a dying process close within moments of each other, but the watch's may be read last.
constexpr auto kCauseFollows = std::chrono::seconds(1);

FrameHeader header_of(const Operation& operation) {
  FrameHeader header;
  header.signature = operation.signature;
  const char* name = operation.purpose.name != nullptr ? operation.purpose.name : "";
  std::memcpy(header.purpose, name, std::min(std::strlen(name), sizeof(header.purpose) - 1));
  return header;
}

}  // namespace

TcpTransport::TcpTransport(const Place& place, std::vector<TcpPeer> peers, std::vector<TcpPeer> message_peers,
                           std::unique_ptr<GroupWatch> watch, ReduceOrder order)
    : place_(place),
      order_(order),
      peers_(std::move(peers)),
      watch_(std::move(watch)),
      channels_(place.rank, std::move(message_peers), *watch_),
      exchange_(place.rank, peers_, events()),
      in_(static_cast<std::size_t>(place.world_size)) {
  watch_->on_over([this] { hang_up(); });
}

TcpTransport::~TcpTransport() {
  say_goodbye();
  watch_->stop();  // or it would hang up on what is going
}

TcpExchange::Events TcpTransport::events() {
  return {
      .lost = [this](int peer) { end_cut(peer); },
      .left = [this](int peer) { end(VerdictKind::kPeerLost, watch_->name_of_rank(peer) + " has left the group"); },
      .mismatch =
          [this](int peer, const FrameHeader& theirs) {
            std::string name(theirs.purpose, strnlen(theirs.purpose, sizeof theirs.purpose));
            const Purpose purpose{name.empty() ? nullptr : name.c_str(), theirs.signature.purpose_index};
            std::string mine_says = fmt::format("rank {}: {}", place_.rank, describe(operation_->signature, operation_->purpose));
            std::string peer_says = fmt::format("rank {}: {}", peer, describe(theirs.signature, purpose));
            if (peer < place_.rank) std::swap(mine_says, peer_says);
            end(VerdictKind::kMismatch,
                fmt::format("the ranks make different calls: {}; {}. All ranks must make the same calls in the same order.", mine_says,
                            peer_says));
          },
      .late =
          [this](const std::vector<int>& late, bool arrived) {
            end(VerdictKind::kTimeout, watch_->describe_absence(*operation_, Clock::now() - started_, late, arrived ? "finish" : "arrive"));
          },
      .slept =
          [this] {
            const auto slept = watch_->slept();
            return slept - std::exchange(slept_before_, slept);
          },
  };
}

void TcpTransport::end(VerdictKind kind, const std::string& text) {
  watch_->declare(kind, text);
  watch_->throw_verdict(describe(operation_->signature, operation_->purpose));
}

// The peer died, left without finding the time to say so here, or the group is over and this rank is about to hear why.
void TcpTransport::end_cut(int peer) {
  const auto until = Clock::now() + kCauseFollows;
  while (!watch_->await_over(std::chrono::milliseconds(10)) && !watch_->has_left(peer) && Clock::now() < until) continue;
  end(VerdictKind::kPeerLost,
      watch_->name_of_rank(peer) + (watch_->has_left(peer) ? " has left the group" : " closed its connection without a goodbye"));
}

// From the thread that learns of the verdict: whoever waits for a peer, here or there, looks up.
void TcpTransport::hang_up() noexcept {
  shut_down(peers_);
  channels_.hang_up();
}

void TcpTransport::abort(const std::string& reason) {
  watch_->declare(VerdictKind::kPeerLost, fmt::format("rank {} aborted the group: {}", place_.rank, reason));
}

// An operation that is under way on the communication thread needs the sockets: then the destructor, which comes after
// it, says goodbye.
void TcpTransport::leave() noexcept {
  if (!busy_.try_lock()) return;
  left_ = true;
  say_goodbye();
  busy_.unlock();
}

void TcpTransport::say_goodbye() noexcept {
  if (std::exchange(said_goodbye_, true)) return;
  watch_->leave();  // first: no connection may end before
  FrameHeader goodbye;
  goodbye.kind = FrameHeader::kGoodbye;
  for (const TcpPeer& peer : peers_) {
    if (!peer.socket) continue;
    [[maybe_unused]] const auto sent = send(peer.socket.get(), &goodbye, sizeof goodbye, MSG_NOSIGNAL | MSG_DONTWAIT);  // it may be gone
    shutdown(peer.socket.get(), SHUT_WR);
  }
}

void TcpTransport::execute(const Operation& operation) {
  const std::lock_guard lock(busy_);
  operation_ = &operation;
  started_ = Clock::now();
  watch_->throw_if_over([&] { return describe(operation.signature, operation.purpose); });
  if (left_) throw PeerLost("{}: this rank has left the group", describe(operation.signature, operation.purpose));
  watch_->begins(operation);
  slept_before_ = watch_->slept();
  exchange_.begin(header_of(operation));
  dispatch(operation);
  watch_->finished();
}

void TcpTransport::dispatch(const Operation& operation) {
  switch (operation.signature.kind) {
    case OperationKind::kBarrier:
      return run_exchange();
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
      return run_exchange();
  }
}

// Nothing to share: plain pages, asked for together all the same, so that programs behave alike on both wires.
Buffer TcpTransport::allocate(const Operation& operation) {
  execute(operation);
  const std::size_t bytes = operation.signature.count;
  auto segment = map_private_segment(std::max<std::size_t>(bytes, 1));
  std::byte* data = segment->data();
  return Buffer(data, bytes, &cpu_device(), [segment = std::move(segment)]() mutable { segment.reset(); });
}

void TcpTransport::run_exchange() {
  exchange_.run(started_ + operation_->timeout);
  bytes_sent_.store(exchange_.payload_bytes_sent(), std::memory_order_relaxed);
}

std::unique_ptr<Transport> make_tcp_transport(const BackendContext& context, ReduceOrder order) {
  auto peers = connect_mesh(context, "tcp", wanted_sockets_per_peer(context.place.world_size));
  auto message_peers = connect_mesh(context, "tcp-messages");
  const WatchOptions options{.place = context.place, .stall_timeout = context.stall_timeout, .store_timeout = context.store_timeout};
  auto watch = std::make_unique<GroupWatch>(options, connect_mesh(context, "watch"));
  return std::make_unique<TcpTransport>(context.place, std::move(peers), std::move(message_peers), std::move(watch), order);
}

}  // namespace lockstep::ring
