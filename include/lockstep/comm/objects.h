// JSON values among the ranks: settings, metrics, paths. Over the CPU backend, collective and blocking; finite numbers
// arrive to the bit, NaN stays NaN. Byte strings go with ProcessGroup::broadcast_text() and all_gather_text().
//
// The type is nlohmann/json's: code that makes or reads one includes <nlohmann/json.hpp>.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/comm/process_group.h"

#pragma GCC visibility push(default)
namespace lockstep {

// `object` of `root`, on all ranks; the others' is not read.
nlohmann::json broadcast_object(ProcessGroup& group, const nlohmann::json& object, int root, const CallOptions& = {});

// Every rank's object, by rank, on all ranks.
std::vector<nlohmann::json> all_gather_object(ProcessGroup& group, const nlohmann::json& object,
                                              const CallOptions& = {});

}  // namespace lockstep
#pragma GCC visibility pop
