// The process of a rank: forked, set up, and executing the program.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/pipe.h"
#include "src/launch/supervise/rank_environment.h"
#include "src/launch/supervise/signals.h"

namespace lockstep::launch {

struct RankProgram {
  std::string file;                                                // looked up in PATH if it has no slash
  std::vector<std::string> arguments;                              // argv; the first is the program's name
  std::vector<EnvironmentChange> environment = {};                 // in addition to a rank's own
  std::function<void(const std::vector<int>& pids)> started = {};  // called once all ranks are forked
};

struct RankSetup {
  int rank = 0;
  std::vector<EnvironmentChange> environment;
  std::vector<int> cores;       // empty: not bound
  bool inherits_input = false;  // otherwise stdin is /dev/null
  int memory_node = -1;         // the preferred NUMA node for memory; -1: the system's choice
  bool has_terminal = false;    // as its stdout; otherwise a pipe
  int columns = 0;              // of that terminal; 0: unknown
};

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;          // also its process group
  Fd output, errors;      // non-blocking read ends of its stdout and stderr
  std::string task = {};  // "ps:0"; empty: it has only its rank
  bool may_fail = false;  // its failure does not end the job while another such rank is left
};

// The reason why a rank could not become its program.
struct StartFailure {
  int rank = 0;
  int error = 0;  // errno
  char step[24] = "";
};

// Forks one rank. Call it from the main thread: the rank dies with the thread that forked it. An error in the child is
// written to `failures` as a StartFailure. Throws Error if the fork itself fails.
RankProcess start_rank(const RankSetup& setup, const RankProgram& program, const Guard& guard,
                       const SignalGate& signals, int failures);

// Waits until every rank runs its program. Returns the first failure, if there is one. Takes the pipe's read end; the
// caller must have closed its write end.
std::optional<StartFailure> await_start(const Fd& failures);

}  // namespace lockstep::launch
