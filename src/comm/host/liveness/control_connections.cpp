#include "src/comm/host/liveness/control_connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "lockstep/core/error.h"
#include "src/comm/net/host_names.h"

namespace lockstep::host {

ControlConnections::ControlConnections(int rank, std::vector<TcpPeer> peers, std::chrono::milliseconds lost_after,
                                       Deadline deadline)
    : rank_(rank), links_(peers.size()) {
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    links_[peer].socket = std::move(peers[peer].socket);
    links_[peer].pid = peers[peer].pid;
  }
  greet(deadline);
  const int urgent = kUrgentBytes;
  for (const Link& link : links_) {
    if (!link.socket) continue;
    notice_lost_machine(link.socket.get(), lost_after);
    setsockopt(link.socket.get(), SOL_SOCKET, SO_RCVLOWAT, &urgent, sizeof urgent);
  }
}

// Closing a connection that holds unread heartbeats would reset it, and a goodbye that is lost with it would not be
// sent again.
ControlConnections::~ControlConnections() {
  char unread[4096];
  for (const Link& link : links_)
    while (link.socket && recv(link.socket.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
}

// All ranks send before they wait, so that no two wait for each other.
void ControlConnections::greet(Deadline deadline) {
  Link& own = links_[static_cast<std::size_t>(rank_)];
  own.pid = getpid();
  own.host = host_name();
  const std::string hello = encode(ControlMessage::kHello, {GroupErrorKind::kNone, own.host});
  const auto bytes_of = [](std::string& text) { return std::as_writable_bytes(std::span(text)); };
  const auto must = [&](IoResult result, std::size_t peer) {
    if (result != IoResult::kDone)
      throw RendezvousError("backend host: rank {} {} rank {} on their control connection", rank_,
                            result == IoResult::kTimeout ? "received nothing in time from" : "was left by", peer);
  };
  for (std::size_t peer = 0; peer < links_.size(); ++peer)
    if (links_[peer].socket) must(send_all(links_[peer].socket.get(), std::as_bytes(std::span(hello)), deadline), peer);
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    Link& link = links_[peer];
    if (!link.socket) continue;
    Frame frame;
    must(receive_all(link.socket.get(), std::as_writable_bytes(std::span(&frame, 1)), deadline), peer);
    if (frame.kind != ControlMessage::kHello || frame.text_bytes > kLongestText)
      throw RendezvousError(
          "backend host: rank {} speaks another protocol on its control connection; do all ranks run the same build?",
          peer);
    link.host.resize(frame.text_bytes);
    must(receive_all(link.socket.get(), bytes_of(link.host), deadline), peer);
  }
}

void ControlConnections::add_to(std::vector<pollfd>& polls) const {
  for (const Link& link : links_)
    if (link.socket)
      polls.push_back({link.socket.get(), static_cast<short>(link.outbox.empty() ? POLLIN : POLLIN | POLLOUT), 0});
}

void ControlConnections::receive(std::vector<ControlMessage>& news) {
  for (int peer = 0; peer < static_cast<int>(links_.size()); ++peer)
    if (links_[static_cast<std::size_t>(peer)].socket) receive_from(peer, news);
}

// Reads all data that has arrived, since a peer's last message is valid even if the peer has exited.
void ControlConnections::receive_from(int peer, std::vector<ControlMessage>& news) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  char bytes[4096];
  while (link.socket) {
    const ssize_t received = recv(link.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (received <= 0) {
      news.push_back({ControlMessage::kClosed, peer, {}, {}, received < 0 ? errno : 0});
      link.socket.reset();
      return;
    }
    link.inbox.append(bytes, static_cast<std::size_t>(received));
    if (take_frames(peer, link.inbox, news)) continue;
    news.push_back({ControlMessage::kClosed, peer, {}, {}, EPROTO});
    link.socket.reset();
  }
}

bool ControlConnections::take_frames(int peer, std::string& inbox, std::vector<ControlMessage>& news) {
  std::size_t at = 0;
  Frame frame;
  while (inbox.size() - at >= sizeof frame) {
    std::memcpy(&frame, inbox.data() + at, sizeof frame);
    const bool has_error = frame.kind == ControlMessage::kProposal || frame.kind == ControlMessage::kGroupError;
    const bool is_known =
        has_error || frame.kind == ControlMessage::kGoodbye || frame.kind == ControlMessage::kHeartbeat;
    if (!is_known || frame.text_bytes > kLongestText) return false;
    if (has_error &&
        (frame.group_error == 0 || frame.group_error > static_cast<std::uint32_t>(GroupErrorKind::kFailed)))
      return false;
    if (inbox.size() - at - sizeof frame < frame.text_bytes) break;
    std::string text = inbox.substr(at + sizeof frame, frame.text_bytes);
    text.resize(std::min(text.size(), text.find('\0')));  // remove the padding
    news.push_back({static_cast<ControlMessage::Kind>(frame.kind),
                    peer,
                    {static_cast<GroupErrorKind>(frame.group_error), std::move(text)},
                    {frame.activity, std::chrono::milliseconds(frame.age_ms)}});
    at += sizeof frame + frame.text_bytes;
  }
  inbox.erase(0, at);
  return true;
}

std::string ControlConnections::encode(ControlMessage::Kind kind, const GroupError& group_error) {
  Frame frame;
  frame.kind = kind;
  frame.text_bytes = static_cast<std::uint32_t>(std::min(group_error.text.size(), kLongestText));
  frame.group_error = static_cast<std::uint32_t>(group_error.kind);
  std::string message(reinterpret_cast<const char*>(&frame), sizeof frame);
  return message.append(group_error.text, 0, frame.text_bytes);
}

void ControlConnections::tell(int peer, ControlMessage::Kind kind, const GroupError& group_error) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  if (!link.socket) return;
  GroupError padded = group_error;
  if (padded.text.size() < kUrgentBytes) padded.text.resize(kUrgentBytes);
  link.outbox += encode(kind, padded);
  flush(link);
}

void ControlConnections::beat(int peer, const Heartbeat& beat) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  if (!link.socket || !link.outbox.empty()) return;
  Frame frame;
  frame.kind = ControlMessage::kHeartbeat;
  frame.activity = beat.activity;
  frame.age_ms =
      static_cast<std::uint32_t>(std::min<std::int64_t>(beat.age.count(), std::numeric_limits<std::uint32_t>::max()));
  link.outbox.assign(reinterpret_cast<const char*>(&frame), sizeof frame);
  flush(link);
}

void ControlConnections::tell_all(ControlMessage::Kind kind, const GroupError& group_error) {
  for (int peer = 0; peer < static_cast<int>(links_.size()); ++peer) tell(peer, kind, group_error);
}

void ControlConnections::flush() {
  for (Link& link : links_)
    if (link.socket) flush(link);
}

// Data for a peer that has exited is dropped; reading detects the exit.
void ControlConnections::flush(Link& link) {
  while (!link.outbox.empty()) {
    const ssize_t sent = send(link.socket.get(), link.outbox.data(), link.outbox.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    link.outbox.erase(0, sent < 0 ? link.outbox.size() : static_cast<std::size_t>(sent));
  }
}

}  // namespace lockstep::host
