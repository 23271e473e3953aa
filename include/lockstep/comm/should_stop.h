// Ends a job early without losing work. A scheduler that takes the machine sends SIGTERM or SIGUSR2 some time before:
//
//   for (; step < steps; ++step) {
//     train_one(step);
//     if (!ls::should_stop()) continue;
//     ls::train::save_checkpoint("run/checkpoints", parts(step + 1));
//     return ls::kPreemptedExitCode;   // from main: the job may be started again, and continues from there
//   }
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Whether any rank has received SIGTERM or SIGUSR2 since its first call of this function; lockrun passes on those that
// it receives, so that one signal to lockrun or to any rank is enough. Collective: all ranks get the same answer in the
// same step, so that all save the same one. Once true, it stays true. `group`: null for the default group; without one,
// this process alone. Costs a small all-reduce: call it once a step, or once in several on a fast model.
//
// The first call installs handlers: until then, and once a peer is lost, SIGTERM ends this process as usual. A handler
// that the program has installed for one of the signals stays, and this function does not see that signal. lockrun
// sends SIGKILL --grace-period seconds (5) after its own SIGTERM. Blocks until all ranks call it. Throws PeerLost and
// TimeoutError as all_reduce() does.
bool should_stop(const std::shared_ptr<ProcessGroup>& group = nullptr);

}  // namespace lockstep
#pragma GCC visibility pop
