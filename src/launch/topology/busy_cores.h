// Detects other work on the cores of a job's ranks, which makes every step wait, and reports its share once.
//
// Measures for a window of some seconds, then pauses, each time for longer. A core is busy if its time goes to
// processes other than the job's (/proc/stat minus the times in /proc/PID/stat) while the ranks wait for a core
// (/proc/PID/schedstat): idle ranks lose nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/supervise/failure_policy.h"

namespace lockstep::launch {

class BusyCores {
 public:
  // `cores`: those of all ranks here. `groups`: the ranks' process groups. `proc`: the path of /proc.
  BusyCores(std::vector<int> cores, std::vector<pid_t> groups, Clock::time_point now, std::string proc = "/proc");

  // When to call look() next; nullopt: nothing is left to report.
  std::optional<Clock::time_point> due() const { return is_done_ ? std::nullopt : std::optional(due_); }
  // Returns the report, or "".
  std::string look(Clock::time_point now);

 private:
  static constexpr std::chrono::seconds kWindow{5}, kLongestRest{300};

  struct Times {
    std::uint64_t busy = 0, all = 0, own = 0;  // clock ticks
    std::uint64_t run = 0, waited = 0;         // nanoseconds of the job's processes
  };
  Times read_times() const;
  void add_processes(Times& times) const;
  std::string describe_share(const Times& begin, const Times& end) const;

  const std::vector<int> cores_;
  const std::vector<pid_t> groups_;
  const std::string proc_;
  std::optional<Times> begin_;
  std::chrono::seconds rest_ = kWindow;
  Clock::time_point due_;
  bool is_done_ = false;
};

}  // namespace lockstep::launch
