// Which workers' gradients are in a step, if there are backup workers: ps:0 decides, and the other servers follow.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "src/train/strategies/parameter_server/parameter_tasks.h"

namespace lockstep::train {

struct StepDecision {
  std::int64_t step = 0;
  std::vector<std::size_t> workers;  // in order
};

class StepDecisions {
 public:
  // `job` outlives this.
  explicit StepDecisions(const ParameterServerJob& job)
      : job_(job), message_(1 + job.tasks.workers.size()), is_over_(!follows()) {}

  // On ps:0: sends a decision to the others.
  void announce(const StepDecision& decision);
  // On ps:0: no decision follows.
  void end();

  // On the others. The receive of the next decision; nullopt: none follows.
  const std::optional<Work>& next() const { return next_; }
  bool is_over() const { return is_over_; }
  void expect();
  void take();  // when next() is done
  std::deque<StepDecision>& pending() { return pending_; }

 private:
  bool follows() const { return job_.options.backup_workers > 0 && job_.tasks.own.index > 0; }
  void send();

  const ParameterServerJob& job_;
  std::vector<std::int64_t> message_;  // the step, 0 at the end; for each worker whether it is in it
  std::optional<Work> next_;
  std::deque<StepDecision> pending_;
  bool is_over_;
};

}  // namespace lockstep::train
