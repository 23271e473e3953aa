// The last activity of a rank. The rank records it at almost no cost; its own failure detector and those of its machine
// read it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

#include "lockstep/comm/operation.h"

namespace lockstep::host {

// The transmitted form: number, kind and purpose of the last operation, and whether the rank is still in it.
struct Activity {
  enum State : std::uint8_t { kNone, kInside, kFinished };
  static constexpr std::size_t kPurposeBytes = 24;

  std::uint64_t word = 0;  // sequence << 16 | kind << 8 | state
  std::int32_t index = -1;
  std::uint32_t reserved = 0;
  char purpose[kPurposeBytes] = {};  // the beginning of Purpose::name

  static std::uint64_t pack(std::uint64_t sequence, OperationKind kind, State state) {
    return sequence << 16 | static_cast<std::uint64_t>(kind) << 8 | state;
  }
  std::uint64_t sequence() const { return word >> 16; }
  OperationKind kind() const { return static_cast<OperationKind>(word >> 8 & 0xff); }
  State state() const { return static_cast<State>(word & 0xff); }
  // "all_reduce #39 (bucket 2)".
  std::string text() const;
};

// Written by the one thread that executes operations; read by failure detectors, also of other processes. All zero
// bytes mean no activity yet.
struct alignas(64) ActivityRecord {
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint64_t> beats;  // heartbeats, counted by the rank's failure detector
  std::atomic<std::uint64_t> purpose[Activity::kPurposeBytes / 8];
  std::atomic<std::int32_t> index;

  // `word` is stored last, with release, and loaded first, with acquire. So the index and purpose are those of the
  // word's call or, since writers do not wait for readers, of a later one that is just beginning.
  Activity read() const;
};

class ActivityWriter {
 public:
  explicit ActivityWriter(ActivityRecord* record) : record_(record) {}
  void begin(const Signature& signature, const Purpose& purpose) {
    if (purpose.name != last_name_) [[unlikely]]
      write_purpose(purpose.name);
    record_->index.store(purpose.index, std::memory_order_relaxed);
    word_ = Activity::pack(signature.sequence, signature.kind, Activity::kInside);
    record_->word.store(word_, std::memory_order_release);
  }
  void finish() { record_->word.store(word_ + (Activity::kFinished - Activity::kInside), std::memory_order_release); }

 private:
  void write_purpose(const char* name);

  ActivityRecord* record_;
  const char* last_name_ = nullptr;
  std::uint64_t word_ = 0;
};

// A rank's activity, the time since when it is known, and the time when it was last seen.
struct Sighting {
  Activity activity;
  std::chrono::steady_clock::time_point since{}, seen_at{};

  void see(const Activity& seen, std::chrono::steady_clock::time_point at) {
    see(seen, at, seen.word != activity.word ? at : since);
  }
  void see(const Activity& seen, std::chrono::steady_clock::time_point at,
           std::chrono::steady_clock::time_point since_when) {
    since = since_when;
    activity = seen;
    seen_at = at;
  }
  // For a lost rank: "was last seen in all_reduce #39 (bucket 2), 31 s ago".
  std::string last_seen(std::chrono::steady_clock::time_point now) const;
  // For a living rank, see whereabouts() in activity.cpp for the forms.
  std::string whereabouts(std::chrono::steady_clock::time_point now) const;
};

std::string seconds_text(std::chrono::steady_clock::duration time);  // "0.4 s", "31 s"

}  // namespace lockstep::host
