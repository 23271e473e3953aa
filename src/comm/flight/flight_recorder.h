// A group's last operations, kept for the day on which something goes wrong.
//
// Fixed memory, one cache line a call, no allocation and no lock. Calls are entered by the one thread that may call
// into the group; their progress is noted by the thread that executes them. Any thread may read at any time: an entry
// carries the number of its call, written last when it is filled and taken away before it is filled again, so that a
// reader who finds the same number before and after has a whole entry (all words are atomic; releases and acquires, no
// fences, so that TSan follows). The group's first failure ends the recording: calls that are refused afterwards must
// not wipe out what led to it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/flight_note.h"
#include "lockstep/comm/operation.h"
#include "src/comm/flight/flight_clock.h"
#include "src/comm/flight/flight_dump.h"

namespace lockstep {

struct alignas(64) FlightEntrySlot {
  static constexpr std::uint64_t kOpen = std::uint64_t{1}
                                         << 63;  // in `ended`: not ended; below it the number of the call
  static constexpr std::uint64_t kFailed = std::uint64_t{1} << 62;  // in `ended`: beside the time of the failure
  std::atomic<std::uint64_t> number{0};                             // from 1; 0: empty, or being filled
  std::atomic<std::uint64_t> issued{0}, started{0}, ended{0};       // ticks; started 0: not yet
  std::atomic<std::uint64_t> count{0};
  std::atomic<const char*> purpose{nullptr};
  std::atomic<std::uint64_t> what{0};  // kind, dtype, op, flags; root or peer
  std::atomic<std::uint64_t> more{0};  // purpose index, tag or number of the allocation; half of the layout's hash
};
static_assert(sizeof(FlightEntrySlot) == 64);

class FlightRecorder {
 public:
  static constexpr std::size_t kEntries = 1024;  // of collectives, and as many of messages and allocations
  enum class By { kCaller, kLater };             // the executing thread: the calling one at once, or another one later

  FlightNote collective(const Signature& signature, const Purpose& purpose, By by);
  // The place of a follower (Work::then), entered as "follower" until collective() is called with its number, by
  // whichever thread runs it.
  FlightNote reserve(std::uint64_t number);
  FlightNote message(const Message& message, bool is_receive);
  FlightNote allocation(std::uint64_t number, std::size_t bytes);

  // The group is over, for the reason that `text` gives; the first call counts, and calls `on_failure`. Another
  // thread's call returns when that is done, or after some seconds: the record is there when the error is thrown,
  // whichever thread saw it first.
  void group_failed(const std::string& text);
  void call_failed(const FlightNote& note, const std::string& text);
  void on_failure(std::function<void()> call) { on_failure_ = std::move(call); }  // before the first call is entered
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }

  // Entries from the oldest to the newest, and the failure; the rest of the group's description is the caller's.
  FlightGroup snapshot(const flight::ClockReading& clock) const;

 private:
  using Entries = std::array<FlightEntrySlot, kEntries>;
  static FlightEntry read(const FlightEntrySlot& slot, const flight::ClockReading& clock);
  static std::vector<FlightEntry> read_all(const Entries& entries, std::uint64_t newest,
                                           const flight::ClockReading& clock);

  Entries collectives_, others_;
  std::atomic<std::uint64_t> newest_{0}, newest_other_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::optional<FlightFailure> failure_;
  std::uint64_t failed_at_ = 0;
  std::function<void()> on_failure_;
  bool is_reported_ = false;
  std::condition_variable reported_;
};

namespace flight {

std::string what_is_handled();  // the text of the exception that is being handled

inline void note_started(const FlightNote& note) {
  if (note.slot != nullptr) note.slot->started.store(ticks(), std::memory_order_release);
}

// Of a collective: its slot cannot have been taken again, since fewer are under way at a time than there are slots.
inline void note_finished(const FlightNote& note) {
  if (note.slot != nullptr) note.slot->ended.store(ticks(), std::memory_order_release);
}

// Of a message, of which any number may be under way.
inline void note_message_finished(const FlightNote& note) {
  if (note.slot == nullptr) return;
  std::uint64_t open = FlightEntrySlot::kOpen | note.number;
  note.slot->ended.compare_exchange_strong(open, ticks());
}

// Called where an exception is handled: it is why the call, and with it the group, has failed.
inline void note_failed(const FlightNote& note) {
  if (note.recorder != nullptr) note.recorder->call_failed(note, what_is_handled());
}

}  // namespace flight

}  // namespace lockstep
