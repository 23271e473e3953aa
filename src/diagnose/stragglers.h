// Finds ranks that keep the others waiting although nothing fails.
#pragma once

#include <vector>

#include "src/diagnose/diagnose.h"
#include "src/diagnose/one_clock.h"

namespace lockstep::diagnose {

// Adds a finding for a rank that came last to most of a group's calls, at least a millisecond after the median rank.
void find_stragglers(const std::vector<FlightDump>& dumps, const std::vector<GroupView>& groups,
                     std::vector<Finding>& findings);

}  // namespace lockstep::diagnose
