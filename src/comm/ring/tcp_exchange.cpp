#include "src/comm/ring/tcp_exchange.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::ring {

TcpExchange::TcpExchange(int rank, std::vector<TcpPeer>& peers, Events events)
    : rank_(rank), peers_(peers), events_(std::move(events)), channels_(peers.size()), polls_(peers.size()) {}

void TcpExchange::begin(const FrameHeader& header) {
  header_ = header;
  for (std::size_t peer = 0; peer < channels_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    Channel& to = channels_[peer];
    to.header_seen = false;
    to.out.pieces.push_back({reinterpret_cast<std::byte*>(&header_), sizeof header_, true});
    to.in.pieces.push_back({reinterpret_cast<std::byte*>(&to.theirs), sizeof to.theirs, true});
  }
}

void TcpExchange::send(int peer, const std::byte* data, std::size_t bytes) {
  if (bytes != 0) channel(peer).out.pieces.push_back({const_cast<std::byte*>(data), bytes, false});
}

void TcpExchange::receive(int peer, std::byte* data, std::size_t bytes) {
  if (bytes != 0) channel(peer).in.pieces.push_back({data, bytes, false});
}

bool TcpExchange::all_idle() const {
  return std::all_of(channels_.begin(), channels_.end(), [](const Channel& c) { return c.in.idle() && c.out.idle(); });
}

void TcpExchange::run(std::chrono::steady_clock::time_point deadline) {
  for (Channel& each : channels_) each.watched = true;
  while (!all_idle()) {
    bool progress = false;
    for (int peer = 0; peer < static_cast<int>(channels_.size()); ++peer) {
      if (peer == rank_) continue;
      progress |= receive_some(peer);
      progress |= send_some(peer);
    }
    if (!progress) wait(deadline);
  }
  for (Channel& each : channels_) {
    each.in.pieces.clear();
    each.out.pieces.clear();
    each.in.next = each.out.next = 0;
  }
}

bool TcpExchange::receive_some(int peer) {
  Channel& from = channel(peer);
  bool progress = false;
  while (!from.in.idle()) {
    const Piece& piece = from.in.pieces[from.in.next];
    const ssize_t received = recv(socket_of(peer), piece.data + from.in.done, piece.bytes - from.in.done, MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (received <= 0) events_.lost(peer);
    progress = true;
    from.in.done += static_cast<std::size_t>(received);
    if (from.in.done < piece.bytes) continue;
    from.in.done = 0;
    ++from.in.next;
    if (piece.is_header) check_header(peer);
  }
  return progress;
}

void TcpExchange::check_header(int peer) {
  Channel& from = channel(peer);
  from.header_seen = true;
  if (from.theirs.kind == FrameHeader::kGoodbye) events_.left(peer);
  if (from.theirs.kind != FrameHeader::kOperation) events_.lost(peer);
  if (from.theirs.signature != header_.signature) events_.mismatch(peer, from.theirs);
}

bool TcpExchange::send_some(int peer) {
  Channel& to = channel(peer);
  bool progress = false;
  while (!to.out.idle() && !to.cannot_send) {
    const Piece& piece = to.out.pieces[to.out.next];
    const ssize_t sent = ::send(socket_of(peer), piece.data + to.out.done, piece.bytes - to.out.done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) {
      // The peer is gone. If it still owes us data, what it said last tells whether it left or died.
      if (to.in.idle()) events_.lost(peer);
      to.cannot_send = true;
      break;
    }
    progress = true;
    to.out.done += static_cast<std::size_t>(sent);
    if (!piece.is_header) payload_sent_ += static_cast<std::uint64_t>(sent);
    if (to.out.done < piece.bytes) continue;
    to.out.done = 0;
    ++to.out.next;
  }
  return progress;
}

void TcpExchange::wait(std::chrono::steady_clock::time_point& deadline) {
  for (int peer = 0; peer < static_cast<int>(channels_.size()); ++peer) {
    const Channel& each = channel(peer);
    short events = 0;
    if (!each.in.idle()) events |= POLLIN;
    if (!each.out.idle() && !each.cannot_send) events |= POLLOUT;
    const bool finished = events == 0;
    polls_[static_cast<std::size_t>(peer)] = {peer == rank_ || (finished && !each.watched) ? -1 : socket_of(peer),
                                              finished ? static_cast<short>(POLLRDHUP) : events, 0};
  }
  const int ready = poll(polls_.data(), polls_.size(), remaining_ms(deadline));
  if (std::chrono::steady_clock::now() > deadline) {
    const auto slept = events_.slept();
    if (slept <= slept.zero()) report_late();
    deadline += slept;
  }
  if (ready < 0 && errno != EINTR) throw Error("ring: poll: {}", std::strerror(errno));
  const bool can_move = std::any_of(polls_.begin(), polls_.end(), [](const pollfd& p) { return p.revents != 0 && p.events != POLLRDHUP; });
  if (ready <= 0 || can_move) return;  // what can still be finished comes before bad news
  for (int peer = 0; peer < static_cast<int>(channels_.size()); ++peer)
    if (polls_[static_cast<std::size_t>(peer)].revents != 0) look_at_finished(peer);
}

// A peer whose part in this exchange is over hung up. Unread data is a goodbye, or belongs to the next exchange.
void TcpExchange::look_at_finished(int peer) {
  char byte;
  channel(peer).watched = false;
  if (recv(socket_of(peer), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) events_.lost(peer);
}

void TcpExchange::report_late() {
  std::vector<int> absent, unfinished;
  for (int peer = 0; peer < static_cast<int>(channels_.size()); ++peer) {
    if (peer == rank_) continue;
    if (!channel(peer).header_seen) absent.push_back(peer);
    if (!channel(peer).in.idle() || !channel(peer).out.idle()) unfinished.push_back(peer);
  }
  events_.late(absent.empty() ? unfinished : absent, absent.empty());
}

}  // namespace lockstep::ring
