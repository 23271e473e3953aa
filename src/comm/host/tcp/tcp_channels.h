// Messages over TCP: a connection to every peer, separate from that of the collectives.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/call/byte_channels.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/wire/tcp_mesh.h"

namespace lockstep::host {

class TcpChannels : public ByteChannels {
 public:
  TcpChannels(int rank, std::vector<TcpPeer> peers, FailureDetector& detector);
  ~TcpChannels() override;

  std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept override;
  std::size_t read(int peer, std::byte* data, std::size_t bytes) override;
  void write_last(int peer, const std::byte* data, std::size_t bytes) noexcept override;
  bool has_gone(int peer) override;
  void close(int peer) override { closed_[static_cast<std::size_t>(peer)] = true; }
  void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept override;
  void interrupt() noexcept override;
  void throw_if_over(const std::function<std::string()>& doing) override;
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override;
  std::chrono::nanoseconds slept() const override { return detector_.slept(); }
  std::string name_of_rank(int rank) const override { return detector_.name_of_rank(rank); }

  // Ends all waits, here and at the peers. Any thread may call it.
  void hang_up() noexcept;
  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  // Waits until the written data has arrived, the peer has exited, or a second has passed: closing a socket with unread
  // data would discard what is still on its way to the peer.
  void linger() noexcept;
  bool is_delivered(int peer) noexcept;
  int socket_of(int peer) const { return peers_[static_cast<std::size_t>(peer)].socket.get(); }

  int rank_;
  std::vector<TcpPeer> peers_;
  FailureDetector& detector_;
  std::vector<std::atomic<bool>> closed_;     // by peer: sent a goodbye
  std::vector<std::atomic<bool>> cut_;        // by peer: ended without a goodbye; the failure detector finds the reason
  std::vector<std::vector<std::byte>> last_;  // by peer: what write_last() could not write
  std::vector<pollfd> polls_;
  Fd interrupt_;
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace lockstep::host
