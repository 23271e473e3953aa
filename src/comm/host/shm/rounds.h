// The rounds of ranks that share a control block (control_block.h has the protocol).
//
// A rank waits with a few pauses, then yields for up to a millisecond, then sleeps on a futex. That is fast while the
// peers have their own cores, fair when they share one, and idle when they are late or when other work has the core
// (backoff.h). Every wait ends: the header arrives, or the group error, a goodbye or the deadline makes it throw.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/comm/operation.h"
#include "src/comm/host/liveness/failure_detector.h"
#include "src/comm/host/machine/control_block.h"
#include "src/comm/net/backoff.h"

namespace lockstep::host {

// False only in builds that measure the cost of the checks.
#ifdef LOCKSTEP_UNCHECKED_SIGNATURES
inline constexpr bool kChecksSignatures = false;
#else
inline constexpr bool kChecksSignatures = true;
#endif

class Rounds {
 public:
  // `rank` is the index in the control block, as everywhere in this class.
  Rounds(const ControlLayout& layout, int rank, FailureDetector& detector);

  // Begins a new operation, on which the headers of its rounds must agree. Throws the group error if the group has
  // ended.
  void begin(const Operation& operation);

  // Number of the next round: fill its header's payload and its slot, then publish.
  std::uint64_t next() const { return round_ + 1; }
  std::byte* payload() const { return layout_.header(rank_, next()).payload; }
  void publish();

  // Waits for the header of `peer` in the last published round. Throws MismatchError if the peer is in another
  // operation.
  const RoundHeader& await(int peer);
  void await_all();
  void barrier() {
    publish();
    await_all();
  }

  // Throws the group error if there is one.
  void throw_if_over() {
    if (detector_.over()) detector_.throw_group_error(doing());
  }

  // Describes this rank's operation, for messages.
  std::string doing() const;

 private:
  // True: the peer's data of this round may be read. (The load acquires what the peer's publish() has released.)
  bool has_arrived(int peer) const { return layout_.header(peer, round_).round.load() == round_; }
  bool agrees(int peer) const { return !kChecksSignatures || layout_.header(peer, round_).signature == hash_; }
  void await_slowly(int peer);
  void sleep_until_woken(int peer);
  void check_for_failures(int peer);
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
  std::chrono::steady_clock::time_point started_{};  // of the operation's first slow wait; the epoch: there was none
  std::chrono::nanoseconds slept_before_{0};         // slept() at that time
};

}  // namespace lockstep::host
