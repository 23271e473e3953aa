// The attempts of a job, one after the other.
#pragma once

#include <string>

#include "lockstep/launch/launch.h"
#include "src/launch/supervise/process.h"
#include "src/launch/topology/device_plan.h"

namespace lockstep::launch {

// Runs the job until the end of an attempt is final, and returns the launcher's exit code. `token` is the user's, or
// empty. Throws what launch() throws, also in a later attempt.
int run_attempts(const LaunchSpec& spec, const RankProgram& program, const DeviceFacts& devices, std::string token);

}  // namespace lockstep::launch
