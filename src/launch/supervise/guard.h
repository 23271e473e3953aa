// The guard: a small process that outlives a killed launcher just long enough to kill what it left behind.
//
// PR_SET_PDEATHSIG reaches the ranks alone. Processes that a rank has started (`sh -c './train & wait'`) are found by
// its process group, and a process must be left to kill that group. The guard is no child of the launcher and has a
// session of its own, so that nothing meant for the launcher hits it; it holds nothing but one end of a pipe. Every
// rank registers its own group before it runs the program; the launcher takes a group off the list before it reaps the
// rank, while the process number cannot have been given to anybody else. When the pipe ends, the groups still listed
// are killed.
#pragma once

#include <sys/types.h>

#include "src/core/process/fd.h"

namespace lockstep::launch {

class Guard {
 public:
  // Starts it: two forks. Call while the process has one thread. Throws Error.
  Guard();

  // In a rank's process, once it leads its group: the group dies with the launcher from now on. False on failure.
  bool register_self() const;

  // In the launcher, before it reaps the leader.
  void forget(pid_t group) const;

 private:
  Fd to_guard_;  // closes on exec: a copy in a rank would keep the pipe from ending
};

}  // namespace lockstep::launch
