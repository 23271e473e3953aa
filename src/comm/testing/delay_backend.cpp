#include "src/comm/testing/delay_backend.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/call/continuation.h"
#include "src/comm/call/unregistered_memory.h"
#include "src/comm/flight/flight_recorder.h"
#include "src/comm/operation/composite.h"

namespace lockstep {

using Clock = std::chrono::steady_clock;

std::chrono::nanoseconds DelayCost::of(std::size_t bytes) const {
  return alpha + std::chrono::nanoseconds(static_cast<long long>(static_cast<double>(bytes) / gigabytes_per_second));
}

DelayCost delay_cost_from_environment() {
  DelayCost cost;
  if (const auto microseconds = env::integer(env::kDelayAlpha, 0, 60'000'000))
    cost.alpha = std::chrono::microseconds(*microseconds);
  if (const auto speed = env::text(env::kDelayBandwidth)) {
    char* end = nullptr;
    cost.gigabytes_per_second = std::strtod(speed->c_str(), &end);
    if (*end != '\0' || !(cost.gigabytes_per_second > 0))
      throw InvalidArgument("environment: {}='{}' is not a positive number", env::kDelayBandwidth, *speed);
  }
  return cost;
}

namespace {

// The bytes of this rank's own data, which is the result.
std::size_t bytes_of(const Operation& operation) {
  if (operation.signature.kind == OperationKind::kBarrier) return 0;
  if (operation.signature.kind == OperationKind::kAllToAllV)
    return std::min(operation.layout->send_counts[0], operation.layout->receive_counts[0]) *
           size_of(operation.signature.dtype);
  return operation.bytes();
}

}  // namespace

// The end of each operation is known when it is issued: a caller only has to wait for the clock.
class DelayBackend::Wire : public CompletionQueue {
 public:
  explicit Wire(const DelayCost& cost) : cost_(cost) {}

  std::uint64_t issue(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    const auto now = Clock::now(), start = std::max(now, free_at_);
    const std::size_t bytes = bytes_of(operation);
    flight::note_started(operation.flight);
    free_at_ = start + cost_.of(bytes);
    events_.push_back({operation.signature.kind, operation.signature.purpose_index, bytes, now, start, free_at_});
    ends_.push_back(free_at_);
    if (ends_.size() > kRemembered) {
      ends_.pop_front();
      ++first_ticket_;
    }
    return first_ticket_ + ends_.size() - 1;
  }

  bool done(std::uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    if (end_of(ticket) <= Clock::now()) return true;  // a complete operation stays complete
    throw_if_aborted();
    return false;
  }

  void wait(std::uint64_t ticket) override {
    std::unique_lock lock(mutex_);
    const auto end = end_of(ticket);
    if (aborted_changed_.wait_until(lock, end, [&] { return aborted_; }) && Clock::now() < end) throw_if_aborted();
  }

  void stream_wait(std::uint64_t ticket, Stream&) override { wait(ticket); }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
    aborted_changed_.notify_all();
  }

  std::vector<DelayEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  void clear_events() {
    const std::lock_guard lock(mutex_);
    events_.clear();
  }

 private:
  static constexpr std::size_t kRemembered = 4096;

  Clock::time_point end_of(std::uint64_t ticket) const {
    return ticket < first_ticket_ ? Clock::time_point::min() : ends_[ticket - first_ticket_];
  }
  void throw_if_aborted() const {
    if (aborted_) throw PeerLost("the process group was aborted: {}", reason_);
  }

  const DelayCost cost_;
  mutable std::mutex mutex_;
  std::condition_variable aborted_changed_;
  Clock::time_point free_at_{};
  std::deque<Clock::time_point> ends_;
  std::uint64_t first_ticket_ = 1;
  std::vector<DelayEvent> events_;
  bool aborted_ = false;
  std::string reason_;
};

DelayBackend::DelayBackend(const DelayCost& cost) : wire_(std::make_shared<Wire>(cost)) {}
DelayBackend::~DelayBackend() = default;

Work DelayBackend::start(const Operation& operation) {
  const std::uint64_t ticket = wire_->issue(operation);
  const auto copy = [](const Operation& plain) {
    if (plain.receive != plain.send && bytes_of(plain) != 0) std::memcpy(plain.receive, plain.send, bytes_of(plain));
  };
  if (CompositeCalls::is_composite(operation))
    CompositeCalls(Place{}).run(operation, copy);
  else
    copy(operation);
  flight::note_finished(operation.flight);  // the time of its end is already known
  return Work(wire_, ticket);
}

// Its data is complete when it is issued; only the time of the transfer is missing.
Work DelayBackend::start_chained(const Operation& operation, const Work& first) {
  const Work made = run_chained(operation, cpu_device().default_stream());
  return operation.chained.makes_call ? made : first;
}

void DelayBackend::run(const Operation& operation) { start(operation).wait(); }

Buffer DelayBackend::allocate(std::size_t bytes) { return allocate_unregistered(bytes); }

void DelayBackend::abort(const std::string& reason) { wire_->abort(reason); }
std::vector<DelayEvent> DelayBackend::events() const { return wire_->events(); }
void DelayBackend::clear_events() { wire_->clear_events(); }

}  // namespace lockstep
