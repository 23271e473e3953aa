// Where a rank runs: which cores are free, which of them and which NUMA node are near its GPU, and how a process is
// bound to them.
#pragma once

#include <string>
#include <vector>

#include "src/launch/topology/machine.h"

namespace lockstep::launch {

// -- which: pure functions

// By rank: those of `cores` that are near its device, split among the ranks to which the same cores are near; in the
// order of `cores`. Where such a group has more ranks than cores, they take turns on all of them. When it is not known
// for every rank what is near, or only for cores that are not among `cores`, or when groups overlap: disjoint shares of
// all, as assign_cores gives.
std::vector<std::vector<int>> assign_near_cores(const std::vector<int>& cores, const std::vector<NearDevice>& near);

// By rank: the NUMA node from which its memory comes first; -1: left to the system, since its device is near none or
// several.
std::vector<int> memory_nodes(const std::vector<NearDevice>& near);

// -- the system's part

// The inherited affinity, ordered so that the threads of one physical core, and the cores of one package, are
// neighbours: contiguous shares of the list then share as little as possible.
std::vector<int> inherited_cores();

// Binds the calling thread, and all that it starts later; false when the system refuses.
bool bind_to_cores(const std::vector<int>& cores);

// Why the launcher should not choose for its ranks: the system refuses (a container), or the user has chosen (numactl).
// Empty: it may.
std::string memory_choice_obstacle();

// Memory of the calling thread, and of all that it starts or executes later, comes from `node` as long as that has
// some; false when the system refuses (errno says why).
bool prefer_memory_of(int node);

}  // namespace lockstep::launch
