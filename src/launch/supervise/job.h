// One attempt of a job on this node: its ranks, their store, and how it ended.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/launch.h"
#include "src/core/process/rank_progress.h"
#include "src/launch/nodes/node_link.h"
#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/pipe.h"
#include "src/launch/supervise/process.h"
#include "src/launch/supervise/rank_environment.h"
#include "src/launch/supervise/restart_policy.h"
#include "src/launch/supervise/signals.h"
#include "src/launch/topology/device_plan.h"

namespace lockstep::launch {

class Supervisor;
struct SupervisorOptions;

// What the attempts of a job have in common on this node.
struct JobBase {
  const LaunchSpec& spec;
  const RankProgram& program;
  const DeviceFacts& devices;
  std::string token;
  std::string fresh_token;  // the same, if lockrun made it
  ProgressPages progress;
  NodePorts ports;  // one node: the listener is the store's
  RestartPolicy policy;
};

struct JobEnd {
  Attempt attempt;
  bool restarts = false;
  std::string why_no_restart = {};
};

class Job {
 public:
  // With several nodes, they have met for this attempt; else `nodes` is null.
  Job(JobBase& base, int attempt, std::unique_ptr<NodeLink> nodes);

  // Starts the ranks one after the other, in an order with these guarantees: signals are caught and the guard is
  // running before the first rank, and the store's thread starts only after the last fork. Blocks until all have ended.
  JobEnd run();

 private:
  JobEnd run_ranks();
  void report_to_nodes(const char* why, int exit_code);
  JobEnd give_up(const StartFailure& failure);
  std::vector<RankProcess> start_ranks();
  void start_ranks(std::vector<RankProcess>& started);
  SupervisorOptions supervisor_options() const;
  FirstFailure describe(const RankExit& exit, const Decision& decision) const;
  void describe_attempt(const Supervisor& supervisor, Attempt& attempt) const;
  JobEnd end_of(const Supervisor& supervisor, Attempt attempt);
  std::int64_t step_of_ranks() const;

  JobBase& base_;
  const LaunchSpec& spec_;
  SignalGate signals_;
  Guard guard_;                      // forked first, so that it inherits nothing of the others
  std::unique_ptr<NodeLink> nodes_;  // null: there is only this node
  Fd listener_;                      // of the store; invalid: another node's launcher has it
  Pipe failures_;
  DevicePlan plan_;
  JobFacts facts_;
};

}  // namespace lockstep::launch
