// From which NUMA node a process's memory comes.
#pragma once

#include <string>

namespace lockstep::launch {

// Why the launcher should not choose for its ranks: the system refuses (a container), or the user has chosen (numactl). Empty: it may.
std::string memory_choice_obstacle();

// Memory of the calling thread, and of all that it starts or executes later, comes from `node` as long as that has some; false when the
// system refuses (errno says why).
bool prefer_memory_of(int node);

}  // namespace lockstep::launch
