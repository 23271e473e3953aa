#include "src/launch/supervise/rank_environment.h"

#include "lockstep/core/environment.h"

namespace lockstep::launch {

std::vector<EnvironmentChange> rank_environment(
    const JobFacts& job, int local_rank, const std::function<std::optional<std::string>(const char*)>& inherited) {
  std::vector<EnvironmentChange> changes = {
      {env::kRank, std::to_string(job.first_rank + local_rank)},
      {env::kLocalRank, std::to_string(local_rank)},
      {env::kWorldSize, std::to_string(job.world_size)},
      {env::kLocalWorldSize, std::to_string(job.ranks)},
      {env::kGroupRank, std::to_string(job.node)},
      {env::kGroupWorldSize, std::to_string(job.nodes)},
      {env::kNodeRank, std::to_string(job.node)},
      {env::kMasterAddr, job.master_host},
      {env::kMasterPort, std::to_string(job.master_port)},
      {env::kStoreHosted, "1"},
      {env::kStorePort, std::to_string(job.store_port)},
      // Removed without a terminal: an outer launcher's value would be wrong here.
      {env::kTerminalWidth, job.terminal_width ? std::optional(std::to_string(*job.terminal_width)) : std::nullopt},
  };
  if (!job.tasks.any())  // an outer job's, to which this one does not belong
    for (const char* name : {env::kJob, env::kTaskIndex, env::kNumPs, env::kNumWorkers})
      if (inherited(name)) changes.emplace_back(name, std::nullopt);
  if (job.tasks.any()) {
    const int rank = job.first_rank + local_rank;
    changes.emplace_back(env::kJob, job.tasks.is_server(rank) ? "ps" : "worker");
    changes.emplace_back(env::kTaskIndex, std::to_string(job.tasks.index_of(rank)));
    changes.emplace_back(env::kNumPs, std::to_string(job.tasks.servers));
    changes.emplace_back(env::kNumWorkers, std::to_string(job.tasks.workers));
  }
  const std::pair<const char*, std::string> restarts[] = {{env::kRestartCount, std::to_string(job.attempt)},
                                                          {env::kMaxRestarts, std::to_string(job.max_restarts)},
                                                          {env::kAttempt, job.attempt_id}};
  for (const auto& [name, value] : restarts)
    if (job.max_restarts > 0 || inherited(name))
      changes.emplace_back(name, job.max_restarts > 0 ? std::optional(value) : std::nullopt);
  if (!job.flight_dir.empty()) changes.emplace_back(env::kFlightDir, job.flight_dir);
  if (!job.fresh_token.empty()) changes.emplace_back(env::kToken, job.fresh_token);
  // A rank's terminal ends in a log: programs must not write colours or cursor movements.
  if (job.has_terminals && !job.terminal_width) changes.emplace_back("TERM", "dumb");
  if (!inherited("OMP_NUM_THREADS")) changes.emplace_back("OMP_NUM_THREADS", std::to_string(job.threads));
  return changes;
}

}  // namespace lockstep::launch
