#include "src/comm/host/tcp/tcp_channels.h"

#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::host {

namespace {

constexpr auto kCutGlance = std::chrono::milliseconds(20);

}  // namespace

TcpChannels::TcpChannels(int rank, std::vector<TcpPeer> peers, FailureDetector& detector)
    : rank_(rank),
      peers_(std::move(peers)),
      detector_(detector),
      closed_(peers_.size()),
      cut_(peers_.size()),
      last_(peers_.size()),
      interrupt_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!interrupt_) throw Error("backend host: cannot make an eventfd: {}", std::strerror(errno));
  polls_.reserve(peers_.size() + 1);
  for (auto& last : last_) last.reserve(64);
}

TcpChannels::~TcpChannels() { linger(); }

std::size_t TcpChannels::write(int peer, const std::byte* data, std::size_t bytes) noexcept {
  ssize_t sent;
  do sent = send(socket_of(peer), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent <= 0) return 0;  // full, or the peer has exited
  bytes_sent_.fetch_add(static_cast<std::uint64_t>(sent), std::memory_order_relaxed);
  return static_cast<std::size_t>(sent);
}

void TcpChannels::write_last(int peer, const std::byte* data, std::size_t bytes) noexcept {
  const std::size_t written = write(peer, data, bytes);
  last_[static_cast<std::size_t>(peer)].assign(data + written,
                                               data + bytes);  // a few bytes, once; the capacity is reserved
}

bool TcpChannels::is_delivered(int peer) noexcept {
  auto& last = last_[static_cast<std::size_t>(peer)];
  last.erase(last.begin(),
             last.begin() + static_cast<std::ptrdiff_t>(last.empty() ? 0 : write(peer, last.data(), last.size())));
  std::byte unread[4096];
  ssize_t received = 0;
  while ((received = recv(socket_of(peer), unread, sizeof unread, MSG_DONTWAIT)) > 0) continue;
  const bool is_gone = received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  int unsent = 0;
  return is_gone || (last.empty() && (ioctl(socket_of(peer), SIOCOUTQNSD, &unsent) != 0 || unsent == 0));
}

void TcpChannels::linger() noexcept {
  constexpr auto kLinger = std::chrono::seconds(1);
  const auto deadline = std::chrono::steady_clock::now() + kLinger;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
    while (peers_[static_cast<std::size_t>(peer)].socket && !is_delivered(peer) &&
           std::chrono::steady_clock::now() < deadline)
      poll(nullptr, 0, 1);
}

std::size_t TcpChannels::read(int peer, std::byte* data, std::size_t bytes) {
  const auto index = static_cast<std::size_t>(peer);
  if (closed_[index] || cut_[index]) return 0;
  ssize_t received;
  do received = recv(socket_of(peer), data, bytes, MSG_DONTWAIT);
  while (received < 0 && errno == EINTR);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  cut_[index] = true;
  return 0;
}

// A peer that left in the middle of a message sent its goodbye to the failure detector, not here. The failure detector
// also reports a peer that died without one.
bool TcpChannels::has_gone(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  return closed_[index] || (cut_[index] && detector_.has_left(peer));
}

void TcpChannels::wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept {
  polls_.clear();
  polls_.push_back({interrupt_.get(), POLLIN, 0});
  bool await_reason = false;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    await_reason |= cut_[index] && !closed_[index];
    if (peer == rank_ || closed_[index] || cut_[index]) continue;
    polls_.push_back({socket_of(peer), static_cast<short>(POLLIN | (writing[index] ? POLLOUT : 0)), 0});
  }
  if (await_reason) until = std::min(until, std::chrono::steady_clock::now() + kCutGlance);
  poll(polls_.data(), polls_.size(), remaining_ms(until));
  if ((polls_[0].revents & POLLIN) == 0) return;
  std::uint64_t count;
  [[maybe_unused]] const auto taken = ::read(interrupt_.get(), &count, sizeof count);
}

void TcpChannels::interrupt() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(interrupt_.get(), &one, sizeof one);  // full: it is interrupted already
}

void TcpChannels::throw_if_over(const std::function<std::string()>& doing) { detector_.throw_if_over(doing); }

void TcpChannels::end(GroupErrorKind kind, const std::string& text, const std::string& doing) {
  detector_.declare(kind, text);
  detector_.throw_group_error(doing);
}

void TcpChannels::hang_up() noexcept {
  for (const TcpPeer& peer : peers_)
    if (peer.socket) shutdown(peer.socket.get(), SHUT_RDWR);
  interrupt();
}

}  // namespace lockstep::host
