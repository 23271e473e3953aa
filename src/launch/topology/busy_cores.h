// Other work on the cores of a job's ranks, which makes every step wait: said once, with the share that it takes.
//
// Looks at a window of some seconds, then rests, each time for longer. Busy is a core whose time goes to processes
// other than the job's
// (/proc/stat less the times in /proc/PID/stat) while the ranks wait for a core (/proc/PID/schedstat): idle ranks miss
// nothing.
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
  // `cores`: of all ranks here. `groups`: the ranks' process groups. `proc`: where /proc is.
  BusyCores(std::vector<int> cores, std::vector<pid_t> groups, Clock::time_point now, std::string proc = "/proc");

  // When to look next; absent: nothing is left to say.
  std::optional<Clock::time_point> due() const { return is_done_ ? std::nullopt : std::optional(due_); }
  // A sentence, or "".
  std::string look(Clock::time_point now);

 private:
  static constexpr std::chrono::seconds kWindow{5}, kLongestRest{300};

  struct Times {
    std::uint64_t busy = 0, all = 0, own = 0;  // clock ticks
    std::uint64_t run = 0, waited = 0;         // nanoseconds of the job's processes
  };
  Times read_times() const;
  void add_processes(Times& times) const;
  std::string judge(const Times& begin, const Times& end) const;

  const std::vector<int> cores_;
  const std::vector<pid_t> groups_;
  const std::string proc_;
  std::optional<Times> begin_;
  std::chrono::seconds rest_ = kWindow;
  Clock::time_point due_;
  bool is_done_ = false;
};

}  // namespace lockstep::launch
