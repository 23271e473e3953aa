// The guard: a small process that outlives a killed launcher just long enough to kill the processes that it left.
//
// PR_SET_PDEATHSIG reaches only the ranks. The processes that a rank has started (`sh -c './train & wait'`) are in its
// process group, and a process must remain to kill that group. The guard is not a child of the launcher and has its own
// session, so that nothing meant for the launcher reaches it; it holds only one end of a pipe. Every rank registers its
// own group before it runs the program. The launcher removes a group from the list before it reaps the rank, while the
// process number cannot have been reused. When the pipe closes, the guard kills the groups that are still listed.
#pragma once

#include <sys/types.h>

#include "src/core/process/fd.h"

namespace lockstep::launch {

class Guard {
 public:
  // Starts the guard with two forks. Call it while the process has one thread. Throws Error.
  Guard();

  // For a rank's process, once it leads its group: from now on the group dies with the launcher. Returns false on
  // failure.
  bool register_self() const;

  // For the launcher, before it reaps the leader.
  void forget(pid_t group) const;

 private:
  Fd to_guard_;  // closes on exec: a copy in a rank would keep the pipe open
};

}  // namespace lockstep::launch
