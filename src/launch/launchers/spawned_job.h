// The launcher of spawn(): this program as the ranks' program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/launch/supervise/rank_environment.h"

namespace lockstep::launch {

// Runs `ranks` ranks of this program to their end and returns launch()'s exit code. `environment` is added to each
// rank's; `started` is called with the ranks' process numbers once all of them are forked. Throws what launch() throws.
int run_spawned_job(int ranks, const std::vector<EnvironmentChange>& environment,
                    const std::function<void(const std::vector<int>& pids)>& started);

}  // namespace lockstep::launch
