// A wait with a deadline that reports its progress every few seconds.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class Waiting {
 public:
  explicit Waiting(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  Clock::time_point deadline() const { return start_ + timeout_; }
  bool is_over() const { return Clock::now() >= deadline(); }
  double timeout_s() const { return static_cast<double>(timeout_.count()) / 1000; }

  // Returns true once every kReportInterval: it is time for a report.
  bool report_is_due() {
    if (Clock::now() < next_word_) return false;
    next_word_ += kReportInterval;
    return true;
  }
  // "(10 s of 60 s)"
  std::string progress() const {
    return fmt::format("({} s of {} s)",
                       std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_).count(), timeout_s());
  }

 private:
  static constexpr std::chrono::seconds kReportInterval{5};

  const std::chrono::milliseconds timeout_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_word_ = start_ + kReportInterval;
};

}  // namespace lockstep::launch
