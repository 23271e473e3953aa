// Where a rank runs: which cores are free, which of them and which NUMA node are near its GPU, and how a process is
// bound to them.
#pragma once

#include <string>
#include <vector>

#include "src/launch/topology/machine.h"

namespace lockstep::launch {

// -- the choice: pure functions

// Returns, by rank, those of `cores` that are near its device, divided among the ranks with the same near cores, in the
// order of `cores`. If such a group has more ranks than cores, they share all of them. Returns disjoint shares of all
// cores, like assign_cores(), if the near cores are not known for every rank, are not among `cores`, or overlap between
// groups.
std::vector<std::vector<int>> assign_near_cores(const std::vector<int>& cores, const std::vector<NearDevice>& near);

// Returns, by rank, the preferred NUMA node of its memory; -1: the system's choice, since its device is near none or
// several.
std::vector<int> memory_nodes(const std::vector<NearDevice>& near);

// -- the system

// The inherited affinity, sorted so that the threads of one physical core, and the cores of one package, are
// neighbours: contiguous shares of the list then have as little as possible in common.
std::vector<int> inherited_cores();

// Binds the calling thread, and all threads that it starts later; returns false if the system refuses.
bool bind_to_cores(const std::vector<int>& cores);

// The reason why the launcher should not choose NUMA nodes for its ranks: the system refuses (a container), or the user
// has chosen (numactl). Empty: it may.
std::string memory_choice_obstacle();

// Memory of the calling thread, and of all processes and threads that it starts later, comes from `node` as long as
// that has some. Returns false if the system refuses (reason in errno).
bool prefer_memory_of(int node);

}  // namespace lockstep::launch
