#include "launcher/topology_command.h"

#include "lockstep/core/error.h"
#include "src/launch/topology.h"

namespace lockstep::launcher {

namespace {

constexpr const char* kTopologyHelp = R"(usage: lockrun topology [--json]

Prints the GPUs that CUDA_VISIBLE_DEVICES leaves and what lies between them, the NUMA nodes with their cores and memory, and the network
interfaces with the one under which other machines would reach this one. It names all that it cannot find out, with the reason.
)";

}  // namespace

std::string topology_command(const std::vector<std::string>& words) {
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return kTopologyHelp;
    if (word != "--json") throw InvalidArgument("topology: {} means nothing here\n{}", word, kTopologyHelp);
    as_json = true;
  }
  const launch::Topology topology = launch::read_topology();
  return as_json ? launch::json_of(topology) : launch::text_of(topology);
}

}  // namespace lockstep::launcher
