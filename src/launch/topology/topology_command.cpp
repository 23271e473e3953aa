#include "src/launch/topology/topology_command.h"

#include "lockstep/core/error.h"
#include "src/launch/topology/topology.h"

namespace lockstep::launch {

namespace {

constexpr const char* kTopologyHelp = R"(usage: lockrun topology [--json]

Prints the GPUs in CUDA_VISIBLE_DEVICES and the links between them, the NUMA nodes with their cores and memory, and the network interfaces
with the one at which other machines would reach this one. It reports everything that it cannot determine, with the reason.
)";

}  // namespace

std::string topology_command(const std::vector<std::string>& words) {
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return kTopologyHelp;
    if (word != "--json") throw InvalidArgument("topology: unexpected argument {}\n{}", word, kTopologyHelp);
    as_json = true;
  }
  const Topology topology = read_topology();
  return as_json ? json_of(topology) : text_of(topology);
}

}  // namespace lockstep::launch
