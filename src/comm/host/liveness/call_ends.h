// Ends a call over TCP with an error that names the rank, the call and the reason for the group's end.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/wire/tcp_exchange.h"

namespace lockstep::host {

FrameHeader header_of(const Operation& operation);

// The last message on these connections. Peers that have exited are skipped.
void send_goodbye(const std::vector<TcpPeer>& peers) noexcept;

// Not movable: the exchange's events refer to it.
class CallEnds {
 public:
  // `ranks`: the group's numbers of the exchange's peers; empty: the numbers are the same.
  explicit CallEnds(FailureDetector& detector, std::vector<int> ranks = {})
      : detector_(detector), ranks_(std::move(ranks)) {}
  CallEnds(const CallEnds&) = delete;
  CallEnds& operator=(const CallEnds&) = delete;

  // Begins a new call, which starts now. `operation` outlives the exchange's runs.
  void begin(const Operation& operation);
  std::chrono::steady_clock::time_point started() const { return started_; }
  TcpExchange::Events events();
  // Ends the group for this reason, unless it has ended already, and throws the group error.
  [[noreturn]] void end(GroupErrorKind kind, const std::string& text) const;

 private:
  [[noreturn]] void end_cut(int peer) const;
  [[noreturn]] void end_mismatch(int peer, const FrameHeader& theirs) const;
  [[noreturn]] void end_late(const std::vector<int>& peers, bool arrived) const;
  int rank_of(int peer) const { return ranks_.empty() ? peer : ranks_[static_cast<std::size_t>(peer)]; }

  FailureDetector& detector_;
  std::vector<int> ranks_;
  const Operation* operation_ = nullptr;
  std::chrono::steady_clock::time_point started_{};
  std::chrono::nanoseconds slept_before_{0};
};

}  // namespace lockstep::host
