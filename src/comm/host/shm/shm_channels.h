// Messages through shared memory: a ring of bytes from every rank to every other.
#pragma once

#include <atomic>

#include "src/comm/call/byte_channels.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/net/backoff.h"

namespace lockstep::host {

class ShmChannels : public ByteChannels {
 public:
  ShmChannels(const ControlLayout& layout, int rank, FailureDetector& detector);

  std::size_t write(int peer, const std::byte* data, std::size_t bytes) noexcept override;
  std::size_t read(int peer, std::byte* data, std::size_t bytes) override;
  bool has_gone(int peer) override { return layout_.block(peer).left.load() != 0; }
  void wait(const std::vector<bool>& writing, std::chrono::steady_clock::time_point until) noexcept override;
  void interrupt() noexcept override;
  void throw_if_over(const std::function<std::string()>& doing) override;
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text, const std::string& doing) override;
  std::string name_of_rank(int rank) const override;
  std::chrono::nanoseconds slept() const override { return detector_.slept(); }

 private:
  bool can_move(const std::vector<bool>& writing) const;
  void wake_peers();

  ControlLayout layout_;
  int rank_;
  const std::size_t bytes_;  // size of a channel
  YieldingWait yields_;      // of the waiting thread
  FailureDetector& detector_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> has_yielded_{false};  // in vain, since data last moved
};

}  // namespace lockstep::host
