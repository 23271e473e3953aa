#include "src/launch/launchers/torchrun_environment.h"

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/rendezvous/environment_reader.h"
#include "src/launch/launchers/given_flags.h"

namespace lockstep::launch {

namespace {

bool is_one(const std::string& nodes) {
  const NodeRange range = node_range(nodes);
  return range.least == "1" && range.most == "1";
}

// A process that a launcher of ranks has started, such as a nested lockrun, already has a job. RANK without the others
// is a pod's number in a PyTorchJob.
bool is_rank(const EnvironmentReader& reader) {
  return reader.text(env::kRank) && (reader.text(env::kLocalRank) || reader.text(env::kStoreHosted));
}

// Flags that determine the number of ranks. Those of a parameter server's job apply to all nodes together.
bool say_how_many_ranks(const std::vector<std::string>& flags, bool on_one_node) {
  const auto has = [&](const char* flag) { return value_of(flags, flag).has_value(); };
  return has("-n") || has("--nproc-per-node") || has("--devices") || (on_one_node && (has("--ps") || has("--workers")));
}

// An error in a variable names the variable, since the user did not write its flag.
void check_number(const EnvironmentReader& reader, const char* variable, long low, long high) {
  if (const auto value = reader.text(variable)) env::parse_integer(variable, *value, low, high);
}

void check_ranks(const EnvironmentReader& reader) {
  constexpr const char* kName = "PET_NPROC_PER_NODE";
  const auto value = reader.text(kName);
  if (value != "auto" && value != "gpu" && value != "cpu") check_number(reader, kName, 1, kMaxRanks);
}

// "2", or torchrun's "2:2".
long number_of_nodes(const std::string& text) {
  constexpr const char* kName = "PET_NNODES";
  const NodeRange range = node_range(text);
  const long least = env::parse_integer(kName, range.least, 1, kMaxRanks);
  if (env::parse_integer(kName, range.most, 1, kMaxRanks) != least)
    throw InvalidArgument("environment: {}={}: lockrun does not support elastic nodes; set their number, {}=K", kName,
                          text, kName);
  return least;
}

void check_node(const EnvironmentReader& reader, const std::string& nodes) {
  check_number(reader, "PET_MASTER_PORT", 1, kMaxPort);
  check_number(reader, "PET_NODE_RANK", 0, kMaxRanks - 1);
  const auto rank = reader.text("PET_NODE_RANK");
  if (rank && std::stol(*rank) >= number_of_nodes(nodes))
    throw InvalidArgument("environment: PET_NODE_RANK={} does not exist with PET_NNODES={}: nodes count from 0", *rank,
                          nodes);
}

}  // namespace

std::vector<std::string> with_torchruns_variables(std::vector<std::string> flags, const EnvironmentLookup& lookup) {
  const EnvironmentReader reader(lookup);
  if (asks_for_information(flags) || is_rank(reader)) return flags;
  const auto stated = value_of(flags, "--nnodes"), told = reader.text("PET_NNODES");
  const std::string nodes = value_of(flags, "--standalone") ? "1" : stated.value_or(told.value_or("1"));
  if (told && !stated && nodes == *told) number_of_nodes(*told);
  const auto add = [&](const char* flag, const char* variable) {
    const auto value = reader.text(variable);
    if (value && !value_of(flags, flag)) flags.insert(flags.end(), {flag, *value});
  };
  if (!say_how_many_ranks(flags, is_one(nodes))) {
    check_ranks(reader);
    add("--nproc-per-node", "PET_NPROC_PER_NODE");
  }
  if (is_one(nodes)) return flags;
  if (!stated && !value_of(flags, "--node-rank")) check_node(reader, nodes);
  add("--nnodes", "PET_NNODES");
  add("--node-rank", "PET_NODE_RANK");
  add("--master-addr", "PET_MASTER_ADDR");
  add("--master-port", "PET_MASTER_PORT");
  return flags;
}

}  // namespace lockstep::launch
