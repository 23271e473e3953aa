#include "src/comm/ring/tcp_channels.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::ring {

TcpChannels::TcpChannels(int rank, std::vector<TcpPeer> peers, Judge judge)
    : rank_(rank),
      peers_(std::move(peers)),
      judge_(std::move(judge)),
      closed_(peers_.size()),
      last_(peers_.size()),
      interrupt_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!interrupt_) throw Error("ring: cannot make an eventfd: {}", std::strerror(errno));
  polls_.reserve(peers_.size() + 1);
  for (auto& last : last_) last.reserve(64);
}

TcpChannels::~TcpChannels() { linger(); }

std::size_t TcpChannels::write(int peer, const std::byte* data, std::size_t bytes) noexcept {
  ssize_t sent;
  do sent = send(socket_of(peer), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  if (sent <= 0) return 0;  // full, or the peer is gone
  bytes_sent_.fetch_add(static_cast<std::uint64_t>(sent), std::memory_order_relaxed);
  return static_cast<std::size_t>(sent);
}

void TcpChannels::write_last(int peer, const std::byte* data, std::size_t bytes) noexcept {
  const std::size_t written = write(peer, data, bytes);
  last_[static_cast<std::size_t>(peer)].assign(data + written, data + bytes);  // reserved: some bytes, once
}

bool TcpChannels::is_delivered(int peer) noexcept {
  auto& last = last_[static_cast<std::size_t>(peer)];
  last.erase(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(last.empty() ? 0 : write(peer, last.data(), last.size())));
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
    while (peers_[static_cast<std::size_t>(peer)].socket && !is_delivered(peer) && std::chrono::steady_clock::now() < deadline)
      poll(nullptr, 0, 1);
}

std::size_t TcpChannels::read(int peer, std::byte* data, std::size_t bytes) {
  if (has_gone(peer)) return 0;
  ssize_t received;
  do received = recv(socket_of(peer), data, bytes, MSG_DONTWAIT);
  while (received < 0 && errno == EINTR);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  const std::string obituary = name_of_rank(peer) + " died, or left in the middle of a message: its connection closed without a goodbye";
  TcpChannels::end(VerdictKind::kPeerLost, obituary, fmt::format("rank {}: messages from rank {}", rank_, peer));
}

void TcpChannels::wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept {
  polls_.clear();
  polls_.push_back({interrupt_.get(), POLLIN, 0});
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_ || has_gone(peer)) continue;
    polls_.push_back({socket_of(peer), static_cast<short>(POLLIN | (writing[static_cast<std::size_t>(peer)] ? POLLOUT : 0)), 0});
  }
  poll(polls_.data(), polls_.size(), remaining_ms(until));
  if ((polls_[0].revents & POLLIN) == 0) return;
  std::uint64_t count;
  [[maybe_unused]] const auto taken = ::read(interrupt_.get(), &count, sizeof count);
}

void TcpChannels::interrupt() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(interrupt_.get(), &one, sizeof one);  // full: it is interrupted already
}

void TcpChannels::throw_if_over(const std::function<std::string()>& doing) {
  if (Verdict verdict; judge_.verdict(verdict)) throw_verdict(verdict, doing());
}

void TcpChannels::end(VerdictKind kind, const std::string& text, const std::string& doing) {
  judge_.declare(kind, text);
  Verdict verdict{kind, text};
  judge_.verdict(verdict);
  throw_verdict(verdict, doing);
}

void TcpChannels::hang_up() noexcept {
  for (const TcpPeer& peer : peers_)
    if (peer.socket) shutdown(peer.socket.get(), SHUT_RDWR);
  interrupt();
}

std::string TcpChannels::name_of_rank(int rank) const {
  return fmt::format("rank {} (pid {})", rank, peers_[static_cast<std::size_t>(rank)].pid);
}

}  // namespace lockstep::ring
