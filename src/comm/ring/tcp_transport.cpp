#include "src/comm/ring/tcp_transport.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lockstep/comm/store.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "src/comm/ring/thread_fabric.h"

namespace lockstep::ring {

namespace {

using Clock = std::chrono::steady_clock;

// A verdict as the store keeps it: its kind as a digit, then its text.
std::string encode(VerdictKind kind, const std::string& text) { return std::to_string(static_cast<unsigned>(kind)) + text; }
Verdict decode(const std::string& value) {
  const unsigned kind = value.empty() ? 0 : static_cast<unsigned>(value[0] - '0');
  if (kind == 0 || kind > static_cast<unsigned>(VerdictKind::kFailed)) return {VerdictKind::kPeerLost, "the job's store holds no reason"};
  return {static_cast<VerdictKind>(kind), value.substr(1)};
}

// All of a dying process's connections close within moments of each other.
bool has_hung_up(int socket) {
  pollfd item{socket, POLLRDHUP, 0};
  return poll(&item, 1, 100) == 1;
}

FrameHeader header_of(const Operation& operation) {
  FrameHeader header;
  header.signature = operation.signature;
  const char* name = operation.purpose.name != nullptr ? operation.purpose.name : "";
  std::memcpy(header.purpose, name, std::min(std::strlen(name), sizeof(header.purpose) - 1));
  return header;
}

}  // namespace

TcpTransport::TcpTransport(const Place& place, std::shared_ptr<Store> store, std::vector<TcpPeer> peers, std::vector<TcpPeer> message_peers,
                           ReduceOrder order)
    : place_(place),
      order_(order),
      store_(std::move(store)),
      peers_(std::move(peers)),
      channels_(place.rank, std::move(message_peers),
                {.declare = [this](VerdictKind kind, const std::string& text) { declare(kind, text); },
                 .verdict =
                     [this](Verdict& verdict) {
                       if (!verdict_.stands()) return false;
                       verdict = verdict_.get();
                       return true;
                     }}),
      exchange_(place.rank, peers_, events()),
      in_(static_cast<std::size_t>(place.world_size)) {}

TcpTransport::~TcpTransport() { say_goodbye(); }

TcpExchange::Events TcpTransport::events() {
  return {
      .lost = [this](int peer) { end(VerdictKind::kPeerLost, obituary(peer)); },
      .left = [this](int peer) { end(VerdictKind::kPeerLost, name_of_rank(peer) + " has left the group"); },
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
            std::string names;
            for (const int peer : late) names += (names.empty() ? "" : ", ") + name_of_rank(peer);
            const std::chrono::duration<double> waited = Clock::now() - started_;
            end(VerdictKind::kTimeout, fmt::format("rank {} waited {:.1f} s in {} #{} for {}, which did not {}", place_.rank,
                                                   waited.count(), lockstep::name_of(operation_->signature.kind),
                                                   operation_->signature.sequence, names, arrived ? "finish" : "arrive"));
          },
  };
}

// By whatever thread of this rank comes first; the others wait until it is done.
void TcpTransport::declare(VerdictKind kind, const std::string& text) {
  const std::lock_guard lock(declaring_);
  if (verdict_.stands()) return;
  const Verdict verdict = agree({kind, text});
  verdict_.declare(verdict.kind, verdict.text);
  for (const TcpPeer& peer : peers_)
    if (peer.socket) shutdown(peer.socket.get(), SHUT_RDWR);
  channels_.hang_up();
  if (place_.rank == 0) outlast_the_others(verdict.kind);
}

Verdict TcpTransport::agree(const Verdict& seen_here) {
  try {
    Verdict agreed = decode(store_->set_if_absent("tcp/verdict", encode(seen_here.kind, seen_here.text)));
    store_->add("tcp/told", 1);
    return agreed;
  } catch (const Error&) {
    // The store ended with the rank that hosts it, which waits for the others unless it dies: then it is to blame, and not
    // the one who saw that first. Without that rank's death, what this rank saw is the best there is.
    if (place_.rank != 0 && has_hung_up(peers_[0].socket.get())) return {VerdictKind::kPeerLost, obituary(0)};
    return seen_here;
  }
}

// Rank 0 may be the host of the store: it stays until the others have read the verdict there. Those who have died cannot, so
// that the wait has an end.
void TcpTransport::outlast_the_others(VerdictKind kind) {
  const int readers = kind == VerdictKind::kMismatch ? ranks() : ranks() - 1;
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  try {
    while (store_->add("tcp/told", 0) < readers && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } catch (const Error&) {
    // Somebody else hosts the store and is gone: the others see that for themselves.
  }
}

void TcpTransport::end(VerdictKind kind, const std::string& text) {
  declare(kind, text);
  throw_verdict(verdict_.get(), describe(operation_->signature, operation_->purpose));
}

void TcpTransport::abort(const std::string& reason) {
  declare(VerdictKind::kPeerLost, fmt::format("rank {} aborted the group: {}", place_.rank, reason));
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
  if (verdict_.stands()) throw_verdict(verdict_.get(), describe(operation.signature, operation.purpose));
  if (left_) throw PeerLost("{}: this rank has left the group", describe(operation.signature, operation.purpose));
  exchange_.begin(header_of(operation));
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

std::string TcpTransport::name_of_rank(int rank) const {
  return fmt::format("rank {} (pid {})", rank, peers_[static_cast<std::size_t>(rank)].pid);
}

std::string TcpTransport::obituary(int rank) const { return name_of_rank(rank) + " died: its connection closed without a goodbye"; }

std::unique_ptr<Transport> make_tcp_transport(const BackendContext& context, ReduceOrder order) {
  auto peers = connect_mesh(context, "tcp");
  return std::make_unique<TcpTransport>(context.place, context.store, std::move(peers), connect_mesh(context, "tcp-messages"), order);
}

}  // namespace lockstep::ring
