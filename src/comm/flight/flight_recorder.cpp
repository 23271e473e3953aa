#include "src/comm/flight/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace lockstep {

namespace {

constexpr auto kRelease = std::memory_order_release;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kLongestReport = std::chrono::seconds(5);

enum Flags : std::uint64_t { kCollective, kSend, kReceive, kAllocation, kFollower };

std::uint64_t pack(OperationKind kind, DType dtype, ReduceOp op, Flags flags, std::int32_t root) {
  return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 |
         static_cast<std::uint64_t>(op) << 16 | flags << 24 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
}

std::uint64_t pack(std::int32_t index, std::uint64_t layout) {
  return static_cast<std::uint32_t>(index) | (layout & 0xffffffff00000000u);
}

struct Content {
  std::uint64_t count;
  const char* purpose;
  std::uint64_t what, more;
};

// The number 0 may be stored relaxed, because each release below publishes it with its own word: a reader that acquires
// a new word then finds 0, or the new number, when it loads the number again.
inline void fill(FlightEntrySlot& slot, std::uint64_t number, const Content& content, bool has_started) {
  const std::uint64_t now = flight::ticks();
  const bool is_reserved = slot.number.load(kRelaxed) == number;
  slot.number.store(0, kRelaxed);
  if (!is_reserved) slot.issued.store(now, kRelease);
  slot.started.store(has_started ? now : 0, kRelease);
  slot.ended.store(FlightEntrySlot::kOpen | number, kRelease);
  slot.count.store(content.count, kRelease);
  slot.purpose.store(content.purpose, kRelease);
  slot.what.store(content.what, kRelease);
  slot.more.store(content.more, kRelease);
  slot.number.store(number, kRelease);
}

}  // namespace

std::string flight::what_is_handled() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

FlightNote FlightRecorder::collective(const Signature& call, const Purpose& purpose, By by) {
  if (failed_.load(kRelaxed)) return {};
  const std::uint64_t number = call.sequence;
  FlightEntrySlot& slot = collectives_[number % kEntries];
  fill(slot, number,
       {call.count, purpose.name, pack(call.kind, call.dtype, call.op, kCollective, call.root),
        pack(call.purpose_index, call.layout)},
       by == By::kCaller);
  if (number > newest_.load(kRelaxed))
    newest_.store(number, kRelease);  // the caller has stored a follower's number already
  return {this, &slot, number};
}

FlightNote FlightRecorder::reserve(std::uint64_t number) {
  if (failed_.load(kRelaxed)) return {};
  FlightEntrySlot& slot = collectives_[number % kEntries];
  fill(slot, number,
       {0, nullptr, pack(OperationKind::kBarrier, DType::kUInt8, ReduceOp::kSum, kFollower, -1), pack(-1, 0)}, false);
  newest_.store(number, kRelease);
  return {this, &slot, number};
}

FlightNote FlightRecorder::message(const Message& message, bool is_receive) {
  if (failed_.load(kRelaxed)) return {};
  const std::uint64_t number = newest_other_.load(kRelaxed) + 1;
  FlightEntrySlot& slot = others_[number % kEntries];
  const Flags flags = is_receive ? kReceive : kSend;
  fill(slot, number,
       {message.count, nullptr, pack(OperationKind::kBarrier, message.dtype, ReduceOp::kSum, flags, message.peer),
        pack(message.tag, 0)},
       true);
  newest_other_.store(number, kRelease);
  return {this, &slot, number};
}

FlightNote FlightRecorder::allocation(std::uint64_t number_of_allocation, std::size_t bytes) {
  if (failed_.load(kRelaxed)) return {};
  const std::uint64_t number = newest_other_.load(kRelaxed) + 1;
  FlightEntrySlot& slot = others_[number % kEntries];
  const std::uint64_t what = pack(OperationKind::kAllocate, DType::kUInt8, ReduceOp::kSum, kAllocation, -1);
  fill(slot, number, {bytes, nullptr, what, pack(static_cast<std::int32_t>(number_of_allocation), 0)}, true);
  newest_other_.store(number, kRelease);
  return {this, &slot, number};
}

void FlightRecorder::call_failed(const FlightNote& note, const std::string& text) {
  std::uint64_t open = FlightEntrySlot::kOpen | note.number;
  if (note.slot != nullptr) note.slot->ended.compare_exchange_strong(open, FlightEntrySlot::kFailed | flight::ticks());
  group_failed(text);
}

void FlightRecorder::group_failed(const std::string& text) {
  {
    std::unique_lock lock(mutex_);
    if (failure_) {
      reported_.wait_for(lock, kLongestReport, [this] { return is_reported_; });
      return;
    }
    failure_ = FlightFailure{text, 0};
    failed_at_ = flight::ticks();
    failed_.store(true);
  }
  if (on_failure_) on_failure_();
  const std::lock_guard lock(mutex_);
  is_reported_ = true;
  reported_.notify_all();
}

// Returns sequence 0 for an entry that is being filled or was reused meanwhile.
FlightEntry FlightRecorder::read(const FlightEntrySlot& slot, const flight::ClockReading& clock) {
  const std::uint64_t number = slot.number.load(std::memory_order_acquire);
  const std::uint64_t issued = slot.issued.load(std::memory_order_acquire),
                      started = slot.started.load(std::memory_order_acquire);
  const std::uint64_t ended = slot.ended.load(std::memory_order_acquire),
                      count = slot.count.load(std::memory_order_acquire);
  const char* purpose = slot.purpose.load(std::memory_order_acquire);
  const std::uint64_t what = slot.what.load(std::memory_order_acquire),
                      more = slot.more.load(std::memory_order_acquire);
  FlightEntry entry;
  if (number == 0 || slot.number.load(kRelaxed) != number) return entry;

  const auto kind = static_cast<OperationKind>(what & 0xff);
  const auto dtype = static_cast<DType>(what >> 8 & 0xff);
  const auto flags = static_cast<Flags>(what >> 24 & 0xff);
  const auto root = static_cast<std::int32_t>(what >> 32);
  const auto index = static_cast<std::int32_t>(more & 0xffffffff);
  entry.sequence = flags == kAllocation ? static_cast<std::uint64_t>(index) : number;
  entry.operation = flags == kSend       ? "send"
                    : flags == kReceive  ? "recv"
                    : flags == kFollower ? "follower"
                                         : std::string(name_of(kind));
  entry.dtype = std::string(name_of(dtype));
  entry.count = count;
  entry.bytes = count * size_of(dtype);
  if (is_reduction(kind)) entry.reduce_op = std::string(name_of(static_cast<ReduceOp>(what >> 16 & 0xff)));
  (flags == kCollective ? entry.root : entry.peer) = root;
  if (flags == kSend || flags == kReceive) entry.tag = index;
  if (flags == kCollective) entry.purpose_index = index;
  if (purpose != nullptr) entry.purpose = purpose;
  entry.layout = static_cast<std::uint32_t>(more >> 32);
  entry.issued_ns = clock.wall_ns(issued);
  if (started != 0) entry.started_ns = clock.wall_ns(started);
  if ((ended & FlightEntrySlot::kOpen) != 0) {
    entry.state = started != 0 ? FlightState::kStarted : FlightState::kIssued;
  } else {
    entry.state = (ended & FlightEntrySlot::kFailed) != 0 ? FlightState::kFailed : FlightState::kFinished;
    entry.ended_ns = clock.wall_ns(ended & ~FlightEntrySlot::kFailed);
  }
  return entry;
}

std::vector<FlightEntry> FlightRecorder::read_all(const Entries& entries, std::uint64_t newest,
                                                  const flight::ClockReading& clock) {
  std::vector<FlightEntry> found;
  for (std::uint64_t number = newest > kEntries ? newest - kEntries + 1 : 1; number <= newest; ++number) {
    FlightEntry entry = read(entries[number % kEntries], clock);
    if (entry.sequence != 0) found.push_back(std::move(entry));
  }
  return found;
}

FlightGroup FlightRecorder::snapshot(const flight::ClockReading& clock) const {
  FlightGroup group;
  group.operations = read_all(collectives_, newest_.load(std::memory_order_acquire), clock);
  // Recording may go on during the read, so that new entries replace older ones.
  std::sort(group.operations.begin(), group.operations.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.sequence < b.sequence; });
  group.messages = read_all(others_, newest_other_.load(std::memory_order_acquire), clock);
  const std::lock_guard lock(mutex_);
  group.failure = failure_;
  if (group.failure) group.failure->at_ns = clock.wall_ns(failed_at_);
  return group;
}

}  // namespace lockstep
