#include "src/comm/host/shm/rounds.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "src/comm/host/machine/futex.h"
#include "src/comm/operation/mismatch.h"
#include "src/core/base/processor.h"

namespace lockstep::host {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPauses = 50;                                     // one or two microseconds
constexpr auto kLongestSleep = std::chrono::milliseconds(500);  // then check again, in case a wake-up was missed

// Ranks that share cores wait for each other's turn, which a pause only delays.
int pauses_for(int ranks) { return ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? kPauses : 1; }

std::uint64_t hash_of(const Signature& signature) {
  std::uint64_t words[sizeof(Signature) / 8];
  std::memcpy(words, &signature, sizeof words);
  std::uint64_t hash = 0x243f6a8885a308d3;  // fractional digits of pi
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;  // 2^64 / golden ratio, an odd multiplier, spreads bits upwards
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

Rounds::Rounds(const ControlLayout& layout, int rank, FailureDetector& detector)
    : layout_(layout), rank_(rank), pauses_(pauses_for(layout.ranks())), detector_(detector) {}

void Rounds::begin(const Operation& operation) {
  operation_ = &operation;
  started_ = {};
  throw_if_over();  // first: peers may be reading the operation of the call that failed
  if constexpr (!kChecksSignatures) return;
  hash_ = hash_of(operation.signature);
  OperationRecord& record = layout_.block(rank_).operation;
  record.signature = operation.signature;
  record.pass = operation.pass;
  const char* purpose = operation.purpose.name != nullptr ? operation.purpose.name : "";
  const std::size_t length = std::min(std::strlen(purpose), sizeof(record.purpose) - 1);
  std::memcpy(record.purpose, purpose, length);
  record.purpose[length] = '\0';
}

// Stores the round, which publishes this rank's data (control_block.h), and then reads `sleepers`; a sleeper counts
// itself and then reads the round. All four are sequentially consistent, so at least one of the two sees the other. (A
// release store would not do: on ARM and x86-64 alike a later load may overtake it.)
void Rounds::publish() {
  ++round_;
  RoundHeader& header = layout_.header(rank_, round_);
  if constexpr (kChecksSignatures) header.signature = hash_;
  header.round.store(round_);
  if (layout_.control().sleepers.load() != 0) [[unlikely]]
    detector_.wake_all();
}

const RoundHeader& Rounds::await(int peer) {
  for (int i = 0; i < pauses_; ++i) {
    if (has_arrived(peer)) {
      if (!agrees(peer)) report_mismatch(peer);
      return layout_.header(peer, round_);
    }
    pause_cpu();
  }
  await_slowly(peer);
  return layout_.header(peer, round_);
}

void Rounds::await_all() {
  for (int peer = 0; peer < layout_.ranks(); ++peer)
    if (peer != rank_) await(peer);
}

void Rounds::await_slowly(int peer) {
  if (started_ == Clock::time_point{}) {
    started_ = Clock::now();
    slept_before_ = detector_.slept();
  }
  yields_.until([&] { return has_arrived(peer) || detector_.over(); });
  while (!has_arrived(peer)) {
    check_for_failures(peer);
    sleep_until_woken(peer);
  }
  if (!agrees(peer)) report_mismatch(peer);
}

// Reads `wake_word` before it looks for a reason to stay awake. Whoever makes such a reason changes the word
// afterwards, and then the kernel does not let this thread sleep.
void Rounds::sleep_until_woken(int peer) {
  ControlBlock& control = layout_.control();
  control.sleepers.fetch_add(1);
  const std::uint32_t seen = control.wake_word.load();
  if (!has_arrived(peer) && !detector_.over() && layout_.block(peer).left.load() == 0) {
    const auto remaining =
        std::chrono::duration_cast<std::chrono::nanoseconds>(started_ + operation_->timeout - Clock::now());
    futex_wait(control.wake_word, seen,
               std::clamp<std::chrono::nanoseconds>(remaining, std::chrono::microseconds(1), kLongestSleep));
  }
  control.sleepers.fetch_sub(1);
}

// Checks the reasons not to wait any longer for `peer`, the most informative first.
void Rounds::check_for_failures(int peer) {
  for (int other = 0; other < layout_.ranks(); ++other)
    if (has_arrived(other) && !agrees(other)) report_mismatch(other);
  const bool left = layout_.block(peer).left.load() != 0;
  // Read after `left`, whose store publishes the rounds before it: the peer may have arrived and then left.
  if (has_arrived(peer)) return;
  if (left) detector_.declare(GroupErrorKind::kPeerLost, detector_.name_of_local(peer) + " has left the group");
  throw_if_over();
  if (is_late()) report_timeout();
}

// The time for which this process was stopped does not count as delay.
bool Rounds::is_late() {
  if (Clock::now() - started_ < operation_->timeout) return false;
  const auto slept = detector_.slept();
  started_ += slept - std::exchange(slept_before_, slept);
  return Clock::now() - started_ >= operation_->timeout;
}

void Rounds::report_mismatch(int peer) {
  const auto said_by = [&](int rank) {
    const OperationRecord& record = layout_.block(rank).operation;
    const Purpose purpose{record.purpose[0] != '\0' ? record.purpose : nullptr, record.signature.purpose_index};
    return CallOfRank{detector_.rank_of_local(rank), record.signature, purpose, record.pass};
  };
  detector_.declare(GroupErrorKind::kMismatch, describe_mismatch(said_by(rank_), said_by(peer)));
  detector_.throw_group_error(doing());
}

void Rounds::report_timeout() {
  std::vector<int> missing;
  for (int other = 0; other < layout_.ranks(); ++other)
    if (other != rank_ && !has_arrived(other)) missing.push_back(detector_.rank_of_local(other));
  detector_.declare(GroupErrorKind::kTimeout,
                    detector_.describe_absence(*operation_, Clock::now() - started_, missing, "arrive"));
  detector_.throw_group_error(doing());
}

std::string Rounds::doing() const { return describe(operation_->signature, operation_->purpose); }

}  // namespace lockstep::host
