// Which cores this process may use.
#pragma once

#include <vector>

namespace lockstep::launch {

// The inherited affinity, ordered so that the threads of one physical core, and the cores of one package, are
// neighbours: contiguous shares of the list then share as little as possible.
std::vector<int> inherited_cores();

// Binds the calling thread, and all that it starts later; false when the system refuses.
bool bind_to_cores(const std::vector<int>& cores);

}  // namespace lockstep::launch
