// Whether lockrun restarts a job whose attempt has ended, and what it reports about the attempts. Pure: no process, no
// clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// The first failure of an attempt, as far as lockrun knows it.
struct FirstFailure {
  int node = 0;
  int rank = -1;  // -1: no rank; a lockrun was lost
  std::string task = {};
  std::string how = {};                      // "exited with code 3", "was killed by signal 9 (SIGKILL: Killed)"
  std::string exception = {};                // the text of the exception that ended the rank, if lockrun knows it
  std::vector<std::string> last_lines = {};  // on stderr; of a rank on this node
  // Another process may have sent the signal, or a machine was lost: that says nothing about the program.
  bool is_from_outside = false;
};

struct Attempt {
  enum class End {
    kFinished,
    kFailed,
    kInterrupted,  // by a signal to a lockrun
    kPreempted,    // the ranks have saved and left with kPreemptedExitCode
    kNotStarted,   // the program cannot be run
  };
  int number = 0;
  std::chrono::system_clock::time_point began{}, ended{};
  End end = End::kFinished;
  int exit_code = 0;
  std::optional<std::int64_t> resumed_step = {}, saved_step = {};  // of checkpoints; of ranks on this node
  // Where the failed rank was, or without one the rank on this node that came furthest: the step of the checkpoint from
  // which it went on plus the optimizer steps after it. Unknown for programs that do not use Lockstep's optimizers.
  std::optional<std::int64_t> step = {};
  std::optional<FirstFailure> failure = {};
  std::vector<int> consequences = {};  // the other ranks on this node that lost it, or that lockrun ended
};

class RestartPolicy {
 public:
  explicit RestartPolicy(int max_restarts) : max_restarts_(max_restarts) {}

  struct Answer {
    bool restarts = false;
    std::chrono::seconds pause{0};  // before the next attempt
    std::string why_not = {};       // a complete line if a failure is not followed by a restart that is allowed
  };
  // To be called once for each attempt, in order. No restart: after attempt number max_restarts; after success, a
  // signal and preemption; without a failed rank or lost node (the output cannot be written); if the program cannot be
  // run, or refuses its arguments before its first step; and if the same failure came at the same step twice in a row.
  // From the second attempt on that ends before it has saved a checkpoint, the pause grows from 1 s to 30 s.
  Answer judge(const Attempt& attempt);

 private:
  const int max_restarts_;
  std::optional<Attempt> before_;
  int without_checkpoint_ = 0;  // attempts in a row
};

// One line for each attempt, for people.
std::string text_of(const std::vector<Attempt>& attempts, int exit_code);
// The same for programs: the JSON that docs/launching.md describes.
std::string json_of(const std::vector<Attempt>& attempts, int max_restarts, int exit_code);

}  // namespace lockstep::launch
