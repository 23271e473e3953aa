// Cores near each rank's GPU. Pure functions.
#pragma once

#include <vector>

#include "src/launch/machine.h"

namespace lockstep::launch {

// By rank: those of `cores` that are near its device, split among the ranks to which the same cores are near; in the order of `cores`.
// Where such a group has more ranks than cores, they take turns on all of them. When it is not known for every rank what is near, or only
// for cores that are not among `cores`, or when groups overlap: disjoint shares of all, as assign_cores gives.
std::vector<std::vector<int>> assign_near_cores(const std::vector<int>& cores, const std::vector<NearDevice>& near);

// By rank: the NUMA node from which its memory comes first; -1: left to the system, since its device is near none or several.
std::vector<int> memory_nodes(const std::vector<NearDevice>& near);

}  // namespace lockstep::launch
