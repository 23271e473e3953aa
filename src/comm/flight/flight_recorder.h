// A group's last operations, kept for the analysis of a failure.
//
// The memory is fixed: one cache line for each call, no allocation and no lock. The one thread that may call into the
// group enters calls; the thread that executes them records their progress. Any thread may read at any time. An entry
// has the number of its call, which is written last when the entry is filled and cleared before it is filled again: a
// reader that finds the same number before and after has a consistent entry (all words are atomic, with releases and
// acquires in place of fences, which TSan does not support). The group's first failure ends the recording, so that
// later refused calls do not overwrite the history.
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
  // In `ended`: not ended; the lower bits are the call's number.
  static constexpr std::uint64_t kOpen = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kFailed = std::uint64_t{1} << 62;  // in `ended`: together with the time of the failure
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
  static constexpr std::size_t kEntries = 1024;  // of collectives, and the same number of messages and allocations
  enum class By { kCaller, kLater };             // who executes: the calling thread at once, or another thread later

  FlightNote collective(const Signature& signature, const Purpose& purpose, By by);
  // Reserves the entry of a follower (Work::then). It is named "follower" until collective() is called with its number,
  // on whichever thread runs it.
  FlightNote reserve(std::uint64_t number);
  FlightNote message(const Message& message, bool is_receive);
  FlightNote allocation(std::uint64_t number, std::size_t bytes);

  // Records the group's end with the reason in `text`. The first call counts, and calls `on_failure`; a concurrent call
  // returns when that is done, or after some seconds. So the record exists when the error is thrown, whichever thread
  // saw it first.
  void group_failed(const std::string& text);
  void call_failed(const FlightNote& note, const std::string& text);
  void on_failure(std::function<void()> call) { on_failure_ = std::move(call); }  // call it before the first entry
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }

  // Returns the entries from the oldest to the newest, and the failure; the caller adds the rest of the group's
  // description.
  FlightGroup snapshot(const flight::ClockReading& clock) const;

 private:
  using Entries = std::array<FlightEntrySlot, kEntries>;
  static FlightEntry read(const FlightEntrySlot& slot, const flight::ClockReading& clock);
  static std::vector<FlightEntry> read_all(const Entries& entries, std::uint64_t newest,
                                           const flight::ClockReading& clock);

  Entries collectives_, others_;
  std::atomic<std::uint64_t> newest_{0}, newest_other_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::optional<FlightFailure> failure_;
  std::uint64_t failed_at_ = 0;
  std::function<void()> on_failure_;
  bool is_reported_ = false;
  std::condition_variable reported_;
};

namespace flight {

std::string what_is_handled();  // text of the exception that is being handled

inline void note_started(const FlightNote& note) {
  if (note.slot != nullptr) note.slot->started.store(ticks(), std::memory_order_release);
}

// For a collective: its slot cannot have been reused, since fewer collectives than slots are under way.
inline void note_finished(const FlightNote& note) {
  if (note.slot != nullptr) note.slot->ended.store(ticks(), std::memory_order_release);
}

// For a message: any number of messages may be under way.
inline void note_message_finished(const FlightNote& note) {
  if (note.slot == nullptr) return;
  std::uint64_t open = FlightEntrySlot::kOpen | note.number;
  note.slot->ended.compare_exchange_strong(open, ticks());
}

// Call it in a catch block: the handled exception is the reason why the call, and with it the group, has failed.
inline void note_failed(const FlightNote& note) {
  if (note.recorder != nullptr) note.recorder->call_failed(note, what_is_handled());
}

}  // namespace flight

}  // namespace lockstep
