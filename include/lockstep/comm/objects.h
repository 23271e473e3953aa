// JSON values among the ranks, for settings, metrics or paths. The calls use the CPU backend, are collective, and
// block. Finite numbers keep their bits; NaN stays NaN. For byte strings see ProcessGroup::broadcast_text() and
// all_gather_text().
//
// The type is nlohmann/json's; code that makes or reads values includes <nlohmann/json.hpp>.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/comm/process_group.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Returns the object of rank `root` on all ranks; the others' `object` is not read.
nlohmann::json broadcast_object(ProcessGroup& group, const nlohmann::json& object, int root, const CallOptions& = {});

// Returns every rank's object, in rank order, on all ranks.
std::vector<nlohmann::json> all_gather_object(ProcessGroup& group, const nlohmann::json& object,
                                              const CallOptions& = {});

}  // namespace lockstep
#pragma GCC visibility pop
