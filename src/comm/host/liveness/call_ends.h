// The messages when something ends a call over TCP: which rank, in which call, and that the group is over.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/wire/tcp_exchange.h"

namespace lockstep::host {

FrameHeader header_of(const Operation& operation);

// Nothing follows it on these connections; peers that are gone are passed over.
void send_goodbye(const std::vector<TcpPeer>& peers) noexcept;

// Stays where it is: the exchange's events refer to it.
class CallEnds {
 public:
  // `ranks`: the exchange's peers as the group counts them; empty: it counts alike.
  explicit CallEnds(FailureDetector& detector, std::vector<int> ranks = {})
      : detector_(detector), ranks_(std::move(ranks)) {}
  CallEnds(const CallEnds&) = delete;
  CallEnds& operator=(const CallEnds&) = delete;

  // A new call, which starts now. It outlives the exchange's runs.
  void begin(const Operation& operation);
  std::chrono::steady_clock::time_point started() const { return started_; }
  TcpExchange::Events events();
  // The group is over, for this reason or an earlier one: throws it.
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
