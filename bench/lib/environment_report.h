// The circumstances of a result: the machine, the build, the placement of the ranks, and the machine's load.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// Collective: each rank contributes the cores on which it may run. All ranks get the same result except for the load.
nlohmann::ordered_json describe_environment(ProcessGroup& group);

}  // namespace lockstep::bench
