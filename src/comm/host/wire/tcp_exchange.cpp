#include "src/comm/host/wire/tcp_exchange.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "lockstep/core/error.h"

namespace lockstep::host {

namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kShareFrom = 128 * 1024;  // size from which a piece is divided among several sockets
constexpr std::size_t kInboxBytes = 16 * 1024;  // a header and that much data arrive in one system call
constexpr std::size_t kPiecesAtOnce = 16;       // in one system call

// A peer that is running answers within some microseconds, and sleeping costs 20-50. Other threads can use the core
// meanwhile.
constexpr int kLooksBeforeSleep = 400;  // system calls, spread over the peers
constexpr int kLooksBeforeYield = 8;

const std::byte kZeros[kAlign] = {};

std::size_t padding_of(std::size_t bytes) { return (kAlign - bytes % kAlign) % kAlign; }

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

bool TcpExchange::Channel::receives() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return !lane.in.idle(); });
}
bool TcpExchange::Channel::sends() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return !lane.out.idle(); });
}
bool TcpExchange::Channel::is_due() const {
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return lane.in.is_due() || lane.out.is_due(); });
}

TcpExchange::TcpExchange(int rank, std::vector<TcpPeer>& peers, Events events)
    : events_(std::move(events)), channels_(peers.size()), inbox_(kInboxBytes), padding_(kAlign) {
  std::size_t lanes = 0;
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    channels_[peer].lanes.push_back({peers[peer].socket.get(), {}, {}});
    for (const ProcessFd& socket : peers[peer].more) channels_[peer].lanes.push_back({socket.get(), {}, {}});
    lanes += channels_[peer].lanes.size();
  }
  polls_.reserve(lanes);  // so that a later call needs no allocation, whichever lanes it waits for
}

void TcpExchange::begin(const FrameHeader& header) {
  header_ = header;
  for (Channel& to : channels_) {
    if (to.lanes.empty()) continue;
    to.header_seen = false;
    to.lanes[0].out.add(reinterpret_cast<std::byte*>(&header_), sizeof header_, PieceQueue::Kind::kHeader);
    to.lanes[0].in.add(reinterpret_cast<std::byte*>(&to.theirs), sizeof to.theirs, PieceQueue::Kind::kHeader);
  }
}

// Both ends divide a piece in the same way, by its size and the number of sockets.
void TcpExchange::add(Channel& to, PieceQueue Lane::*queue, std::byte* data, std::size_t bytes, std::byte* padding) {
  const std::size_t lanes = bytes < kShareFrom ? 1 : to.lanes.size();
  const std::size_t share = (bytes / lanes + kAlign - 1) / kAlign * kAlign;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t begin = std::min(lane * share, bytes), part = std::min(share, bytes - begin);
    (to.lanes[lane].*queue).add(data + begin, lane + 1 == lanes ? bytes - begin : part, PieceQueue::Kind::kPayload);
  }
  (to.lanes[lanes - 1].*queue).add(padding, padding_of(bytes), PieceQueue::Kind::kPadding);
}

void TcpExchange::send(int peer, const std::byte* data, std::size_t bytes) {
  add(channel(peer), &Lane::out, const_cast<std::byte*>(data), bytes, const_cast<std::byte*>(kZeros));
}

void TcpExchange::receive(int peer, std::byte* data, std::size_t bytes) {
  add(channel(peer), &Lane::in, data, bytes, padding_.data());
}

void TcpExchange::mark() {
  is_marked_ = true;
  for (Channel& each : channels_) {
    for (Lane& lane : each.lanes) {
      lane.in.mark();
      lane.out.mark();
    }
  }
}

bool TcpExchange::all_due_done() const {
  return std::none_of(channels_.begin(), channels_.end(), [](const Channel& c) { return c.is_due(); });
}

bool TcpExchange::move_some() {
  bool progress = false;
  for (int peer = 0; peer < ranks(); ++peer) {
    for (Lane& lane : channel(peer).lanes) {
      progress |= receive_some(peer, lane);
      progress |= send_some(peer, lane);
    }
    // The peer has exited, and its last message did not say why.
    if (channel(peer).cannot_send && !channel(peer).receives()) events_.lost(peer);
  }
  return progress;
}

void TcpExchange::run(std::chrono::steady_clock::time_point deadline) {
  if (!is_marked_) mark();
  is_marked_ = false;
  const int looks = kLooksBeforeSleep / ranks();
  move_some();  // at least once, for the pieces after the mark
  std::chrono::steady_clock::time_point yield_until;
  for (int looked = 0; !all_due_done();) {
    if (move_some()) {
      looked = 0;
      continue;
    }
    if (++looked == kLooksBeforeYield) yield_until = std::chrono::steady_clock::now() + kYieldFor;
    if (looked > kLooksBeforeYield && std::chrono::steady_clock::now() > yield_until) looked = looks + 1;
    if (looked > looks) {
      wait(deadline);
    } else if (looked > kLooksBeforeYield && !yields_.once()) {
      looked = looks;  // check once more, then sleep
    }
  }
  for (Channel& each : channels_) {
    for (Lane& lane : each.lanes) {
      lane.in.forget_done();
      lane.out.forget_done();
    }
  }
}

// Data that arrives with its header stays in the inbox until the header is compared. No more than planned is read.
ssize_t TcpExchange::receive_once(int peer, Lane& lane) {
  if (!lane.in.at_header()) {
    std::array<iovec, kPiecesAtOnce> room;
    const std::span<iovec> parts = lane.in.gather(room);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t received = recvmsg(lane.socket, &message, MSG_DONTWAIT);
    if (received > 0) lane.in.advance(static_cast<std::size_t>(received));
    return received;
  }
  const std::size_t wanted = lane.in.left() <= kInboxBytes ? lane.in.left() : sizeof(FrameHeader);
  const ssize_t received = recv(lane.socket, inbox_.data(), wanted, MSG_DONTWAIT);
  for (std::size_t taken = 0; received > 0 && taken < static_cast<std::size_t>(received);) {
    PieceQueue::Passed passed;
    taken += lane.in.fill(std::span(inbox_).subspan(taken, static_cast<std::size_t>(received) - taken), passed);
    if (passed.header_ended) check_header(peer);
  }
  return received;
}

bool TcpExchange::receive_some(int peer, Lane& lane) {
  bool progress = false;
  while (channel(peer).may_receive(lane)) {
    const ssize_t received = receive_once(peer, lane);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && would_block()) break;
    if (received <= 0) events_.lost(peer);
    progress = true;
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

bool TcpExchange::send_some(int peer, Lane& lane) {
  Channel& to = channel(peer);
  bool progress = false;
  while (!lane.out.idle() && !to.cannot_send) {
    std::array<iovec, kPiecesAtOnce> room;
    const std::span<iovec> parts = lane.out.gather(room);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(lane.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && would_block()) break;
    if (sent < 0) {
      to.cannot_send = true;  // data from the peer that is still unread may tell whether it left or died
      break;
    }
    progress = true;
    payload_sent_ += lane.out.advance(static_cast<std::size_t>(sent)).payload;
  }
  return progress;
}

// A peer for which nothing is left to do may close the connection: it has finished and leaves, or the failure detector
// finds that it died.
void TcpExchange::add_polls(int peer) {
  const Channel& each = channel(peer);
  for (const Lane& lane : each.lanes) {
    short events = each.may_receive(lane) ? POLLIN : 0;
    if (!lane.out.idle() && !each.cannot_send) events |= POLLOUT;
    if (events != 0) polls_.push_back({lane.socket, events, 0});
  }
}

void TcpExchange::wait(std::chrono::steady_clock::time_point& deadline) {
  polls_.clear();
  for (int peer = 0; peer < ranks(); ++peer) add_polls(peer);
  const int ready = poll(polls_.data(), polls_.size(), remaining_ms(deadline));
  if (std::chrono::steady_clock::now() > deadline) {
    const auto slept = events_.slept();
    if (slept <= slept.zero()) report_late();
    deadline += slept;
  }
  if (ready < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "poll");
}

void TcpExchange::report_late() {
  std::vector<int> absent, unfinished;
  for (int peer = 0; peer < ranks(); ++peer) {
    const Channel& each = channel(peer);
    if (each.lanes.empty()) continue;
    if (!each.header_seen) absent.push_back(peer);
    if (each.is_due()) unfinished.push_back(peer);
  }
  events_.late(absent.empty() ? unfinished : absent, absent.empty());
}

}  // namespace lockstep::host
