// The circumstances of a result: the machine, the build, where the ranks ran, what else the machine did.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// Collective: each rank tells on which cores it may run. All ranks get the same but for the load.
nlohmann::ordered_json describe_environment(ProcessGroup& group);

}  // namespace lockstep::bench
