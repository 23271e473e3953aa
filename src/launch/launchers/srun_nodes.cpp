#include "src/launch/launchers/srun_nodes.h"

#include <algorithm>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/rendezvous/hydra.h"
#include "src/comm/rendezvous/slurm.h"
#include "src/launch/launchers/given_flags.h"

namespace lockstep::launch {

namespace {

bool says_how_many(const std::vector<std::string>& flags) {
  const auto nodes = value_of(flags, "--nnodes");
  return value_of(flags, "--standalone") || nodes == "1" || nodes == "1:1" || (nodes && value_of(flags, "--node-rank"));
}

// Another launcher has started this lockrun as one of its ranks, and srun's variables are inherited from it.
bool another_launcher_stands_between(const EnvironmentReader& reader) {
  return reader.text(env::kRank) || reader.text("OMPI_COMM_WORLD_RANK") || hydra::is_rank(reader);
}

}  // namespace

std::vector<std::string> with_srun_nodes(std::vector<std::string> flags, const EnvironmentLookup& lookup) {
  const EnvironmentReader reader(lookup);
  if (asks_for_information(flags) || says_how_many(flags)) return flags;
  if (another_launcher_stands_between(reader) || !slurm::is_task(reader)) return flags;
  JobEnvironment job;
  slurm::read_job(reader, job);
  if (!slurm::has_one_task_a_node(reader))
    throw InvalidArgument(
        "srun has started {} lockruns, several of them on one node: lockrun starts a node's ranks itself, so one on "
        "each node is enough (srun --ntasks-per-node=1); if each is to run its own job, write --nnodes 1",
        job.place.world_size);
  const bool names_node_zero = value_of(flags, "--master-addr").has_value();
  const auto add = [&flags](const char* flag, const std::string& value) {
    if (!value_of(flags, flag)) flags.insert(flags.end(), {flag, value});
  };
  add("--nnodes", std::to_string(job.place.world_size));
  add("--node-rank", std::to_string(job.place.rank));
  add("--master-addr", job.master_host);
  if (!names_node_zero) add("--master-port", std::to_string(job.master_port));
  return flags;
}

}  // namespace lockstep::launch
