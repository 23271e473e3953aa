// Options that a wrapper of any framework refuses. Each function returns the reason, or "".
#pragma once

#include <span>
#include <string>

#include "lockstep/reduce/bucket_plan.h"
#include "lockstep/reduce/comm_hook.h"

namespace lockstep {

std::string refused_caps(std::span<const double> bucket_cap_mb);
BucketCaps caps_in_bytes(std::span<const double> bucket_cap_mb);  // of MiB that are not refused
std::string refused_policies(bool find_unused_parameters, bool static_graph, const CommHook& hook);
// For join(); the same on all ranks.
std::string refused_join(bool static_graph, const CommHook& hook);

}  // namespace lockstep
