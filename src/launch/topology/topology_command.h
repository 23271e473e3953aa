// The command lockrun topology.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

// lockrun topology [--json]: the cores, memory, GPUs and network interfaces of this machine. `words` are those after
// "topology". Throws InvalidArgument for an invalid word.
std::string topology_command(const std::vector<std::string>& words);

}  // namespace lockstep::launch
