#include "launcher/report_commands.h"

#include "lockstep/core/error.h"
#include "src/diagnose/diagnose.h"
#include "src/diagnose/folder.h"
#include "src/diagnose/report.h"
#include "src/launch/topology/topology.h"

namespace lockstep::launcher {

namespace {

constexpr const char* kDiagnoseHelp = R"(usage: lockrun diagnose DIR [--json]

Reads the flight records rank<R>.json in DIR and says which rank did not come to which operation, who waits for whom, where ranks make
different calls, and who keeps the others waiting. A job writes them when a group fails, and on SIGUSR1 to a rank or to lockrun, once
it has a folder for them: lockrun --flight-dir DIR, or LOCKSTEP_FLIGHT_DIR.
)";

constexpr const char* kTopologyHelp = R"(usage: lockrun topology [--json]

Prints the GPUs that CUDA_VISIBLE_DEVICES leaves and what lies between them, the NUMA nodes with their cores and memory, and the network
interfaces with the one under which other machines would reach this one. It names all that it cannot find out, with the reason.
)";

}  // namespace

std::string diagnose_command(const std::vector<std::string>& words) {
  std::string folder;
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return kDiagnoseHelp;
    if (word == "--json")
      as_json = true;
    else if (word.size() > 1 && word[0] == '-')
      throw InvalidArgument("diagnose: there is no flag {}\n{}", word, kDiagnoseHelp);
    else if (folder.empty())
      folder = word;
    else
      throw InvalidArgument("diagnose: one folder at a time; {} and {} are given\n{}", folder, word, kDiagnoseHelp);
  }
  if (folder.empty()) throw InvalidArgument("diagnose: which folder?\n{}", kDiagnoseHelp);
  const diagnose::Records records = diagnose::read_folder(folder);
  const auto findings = diagnose::diagnose(records.dumps);
  return as_json ? diagnose::json_report(records, findings) : diagnose::text_report(records, findings);
}

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
