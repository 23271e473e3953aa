// When cuDNN's engines are measured, and for how long at most.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::cuda {

// A convolution is tuned in this call with the same shape: a shape that comes once or twice is not worth it. Calls are
// counted, not steps: equal layers of a network come several times in one. DistributedDataParallel::capture() makes
// three eager steps before it records one.
inline constexpr int kCallThatTunes = 3;
// At most so many engines are measured for a shape: those that cuDNN's heuristics put first.
inline constexpr int kMeasuredEngines = 10;

// The process's time for building and measuring engines, LOCKSTEP_CUDNN_TUNING_S. Any thread may use it.
class TuningBudget {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TuningBudget(std::chrono::nanoseconds total) : left_ns_(total.count()) {}

  bool is_spent() const { return left_ns_.load(std::memory_order_relaxed) <= 0; }
  // Returns true for the one call that used the last of it.
  bool spend(Clock::duration time) {
    const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    const std::int64_t before = left_ns_.fetch_sub(ns, std::memory_order_relaxed);
    return before > 0 && before <= ns;
  }

 private:
  std::atomic<std::int64_t> left_ns_;
};

TuningBudget& tuning_budget();

}  // namespace lockstep::cuda
