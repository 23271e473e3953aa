// Decides which exit of a rank is the cause of a failed job, and when to end the others. Pure: no process, no clock.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

using Clock = std::chrono::steady_clock;

// The exit of a rank.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  bool by_signal = false;
  int value = 0;  // exit code or signal number
  bool core_dumped = false;
  Clock::time_point when{};
  std::string task = {};  // "ps:0"; empty: it has only its rank
  bool may_fail = false;  // a worker with --allow-worker-failures

  bool failed() const { return by_signal || (value != 0 && !is_preempted()); }
  // The rank has saved its state and left, as it was asked to.
  bool is_preempted() const;
  // The rank ended because another one failed: this exit does not explain why the job failed.
  bool is_consequence() const;
  // As in a shell: the code, or 128 + signal.
  int exit_code() const { return by_signal ? 128 + value : value; }
};

struct Decision {
  enum class Action {
    kContinue,      // no failure: ranks still run, or all have ended successfully
    kWaitForCause,  // only consequences so far, whose cause may follow: decide again at `until`
    kEndJob,        // end the others; exits[cause] is the cause
  };
  Action action = Action::kContinue;
  Clock::time_point until{};
  std::size_t cause = 0;
  bool only_consequences = false;  // no rank failed by itself
};

// `exits` are all exits so far, in the order in which they were seen. `workers` of the `ranks` ranks may fail: as long
// as one of them runs or has ended successfully, their failures do not end the job.
Decision decide(const std::vector<RankExit>& exits, int ranks, Clock::time_point now,
                std::chrono::milliseconds wait_for_cause, int workers = 0);

// How many processes the system has killed recently because memory ran out.
struct MemoryKills {
  long count = 0;
  std::chrono::seconds within{};
};

// "exited with code 3", "was killed by signal 11 (SIGSEGV: Segmentation fault)".
std::string describe(const RankExit& exit);

// The number of workers that have failed.
int failed_workers(const std::vector<RankExit>& exits);

// The line for the failure of a worker that may fail: "lockrun: rank 1 (worker:1, pid 4711) was killed by signal 9
// (SIGKILL: Killed): the job goes on with 2 of 3 workers".
std::string allowed_failure(const RankExit& exit, int left, int workers);

// The message for the user when a job has failed: the rank that caused it. Complete lines. `where` names the node if
// there are several; `memory_kills` are those of the job's control group, nullopt if the system does not count them.
std::string failure_cause(const std::vector<RankExit>& exits, const Decision& decision, const std::string& where = "",
                          const std::optional<MemoryKills>& memory_kills = {});
// The lines below it: the last lines of that rank. Complete lines.
std::string failure_details(const std::vector<std::string>& last_lines);

}  // namespace lockstep::launch
