// A rank's process: forked, set up, and then the program.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/pipe.h"
#include "src/launch/supervise/rank_environment.h"
#include "src/launch/supervise/signals.h"

namespace lockstep::launch {

struct RankProgram {
  std::string file;                    // looked up in PATH when it has no slash
  std::vector<std::string> arguments;  // the first is the name that it is given
};

struct RankSetup {
  int rank = 0;
  std::vector<EnvironmentChange> environment;
  std::vector<int> cores;       // empty: not bound
  bool inherits_input = false;  // else stdin is /dev/null
  int memory_node = -1;         // the NUMA node from which memory comes first; -1: the system's choice
  bool has_terminal = false;    // as its stdout; else a pipe
  int columns = 0;              // of that terminal; 0: not known
};

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;          // and its process group
  Fd output, errors;      // read ends of its stdout and stderr, which do not block
  std::string task = {};  // "ps:0"; empty: it is known by its rank alone
};

// Why a rank could not become its program.
struct StartFailure {
  int rank = 0;
  int error = 0;  // errno
  char step[24] = "";
};

// Forks one rank. Call from the main thread: the rank dies with the thread that forked it. An error in
// the child is written to `failures` as a StartFailure. Throws Error when the fork itself fails.
RankProcess start_rank(const RankSetup& setup, const RankProgram& program, const Guard& guard,
                       const SignalGate& signals, int failures);

// Waits until every rank runs its program: the first failure, if there is one. Takes the pipe's read end; the
// caller has closed its own write end.
std::optional<StartFailure> await_start(const Fd& failures);

}  // namespace lockstep::launch
