// One attempt of a job on this node: its ranks, their store, and how it ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/launch.h"
#include "src/core/process/progress_page.h"
#include "src/launch/attempts/restart_policy.h"
#include "src/launch/nodes/node_link.h"
#include "src/launch/supervise/guard.h"
#include "src/launch/supervise/pipe.h"
#include "src/launch/supervise/process.h"
#include "src/launch/supervise/rank_environment.h"
#include "src/launch/supervise/signals.h"
#include "src/launch/topology/device_plan.h"

namespace lockstep::launch {

class Supervisor;
struct SupervisorOptions;

// The state that all attempts of a job share on this node. Signals are caught from the first attempt on, also between
// attempts.
struct JobBase {
  const LaunchSpec& spec;
  const RankProgram& program;
  const DeviceFacts& devices;
  std::string token;
  std::string fresh_token = {};  // the same, if lockrun made it
  NodePorts ports = {};          // one node: the listener is the store's
  RestartPolicy policy;
  std::optional<SignalGate> signals = {};
  std::optional<Guard> guard = {};
};

struct JobEnd {
  Attempt attempt;
  RestartPolicy::Answer answer;
  // A signal came after the decision to restart: the other nodes have to be told that this one will not take part.
  bool leaves = false;
};

class JobAttempt {
 public:
  // With several nodes, they have met for this attempt; else `nodes` is null.
  JobAttempt(JobBase& base, int attempt, std::unique_ptr<NodeLink> nodes);

  // Starts the ranks one after the other, in an order with these guarantees: signals are caught and the guard is
  // running before the first rank, and the store's thread starts only after the last fork. Blocks until all have ended.
  // Throws InvalidArgument for a plan that the devices do not allow, Error if a system call fails; on several nodes the
  // others are told first.
  JobEnd run();

 private:
  JobEnd run_ranks();
  void report_to_nodes(const char* why, int exit_code);
  JobEnd give_up(const StartFailure& failure);
  std::vector<RankProcess> start_ranks();
  void start_ranks(std::vector<RankProcess>& started);
  SupervisorOptions supervisor_options() const;
  FirstFailure describe(const RankExit& exit, const Decision& decision, bool memory_ran_out) const;
  void describe_attempt(const Supervisor& supervisor, Attempt& attempt) const;
  void judge(NodeReport& decision);
  JobEnd end_of(const Supervisor& supervisor, Attempt attempt);
  std::optional<std::int64_t> step_of(int rank) const;
  std::optional<std::int64_t> saved_step() const;

  JobBase& base_;
  const LaunchSpec& spec_;
  SignalGate& signals_;
  Guard& guard_;
  ProgressPages progress_;
  std::unique_ptr<NodeLink> nodes_;  // null: there is only this node
  Fd listener_;                      // of the store; invalid: another node's launcher has it
  Pipe failures_;
  DevicePlan plan_;
  JobFacts facts_;
};

}  // namespace lockstep::launch
