// Arriving and waiting: the rounds of ranks that share a control block (see control_block.h for the protocol).
//
// Waiting is a few pauses, then yields for up to a millisecond, then sleep on a futex: quick while the peers have cores
// of their own, fair when they share one, idle when they are late or when other work has the core (backoff.h). Every
// wait ends: the line arrives, or the group error, a goodbye or the deadline makes it throw.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/comm/operation.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/net/backoff.h"

namespace lockstep::host {

// False only in builds that measure what the checks cost.
#ifdef LOCKSTEP_UNCHECKED_SIGNATURES
inline constexpr bool kChecksSignatures = false;
#else
inline constexpr bool kChecksSignatures = true;
#endif

class Rounds {
 public:
  // `rank`: the index in the control block, as everywhere here.
  Rounds(const ControlLayout& layout, int rank, FailureDetector& detector);

  // A new operation: what the lines of its rounds must agree on. Throws the group error if the group is over.
  void begin(const Operation& operation);

  // The round to come: fill its line's payload and its slot, then publish.
  std::uint64_t next() const { return round_ + 1; }
  std::byte* payload() const { return layout_.line(rank_, next()).payload; }
  void publish();

  // The line of `peer` in the round published last. Throws MismatchError if the peer is in another operation.
  const Line& await(int peer);
  void await_all();
  void barrier() {
    publish();
    await_all();
  }

  // Throws the group error if there is one.
  void throw_if_over() {
    if (detector_.over()) detector_.throw_group_error(doing());
  }

  // The operation of this rank, for messages.
  std::string doing() const;

 private:
  bool has_arrived(int peer) const { return layout_.line(peer, round_).round.load() == round_; }
  bool agrees(int peer) const { return !kChecksSignatures || layout_.line(peer, round_).signature == hash_; }
  void await_slowly(int peer);
  void sleep_until_woken(int peer);
  void look_for_trouble(int peer);
  bool is_late();
  [[noreturn]] void report_mismatch(int peer);
  [[noreturn]] void report_timeout();

  ControlLayout layout_;
  int rank_;
  int pauses_;
  YieldingWait yields_;
  FailureDetector& detector_;
  const Operation* operation_ = nullptr;
  std::uint64_t round_ = 0;
  std::uint64_t hash_ = 0;
  std::chrono::steady_clock::time_point started_{};  // of the operation's first slow wait; the epoch: none yet
  std::chrono::nanoseconds slept_before_{0};         // by then
};

}  // namespace lockstep::host
