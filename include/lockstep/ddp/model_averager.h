// Averages of weights every so many steps: with a comm hook that leaves gradients on their ranks (reduce/hooks.h),
// local SGD.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = hooks::post_local_sgd({.start_step = 100})});
//   PeriodicModelAverager averager(ddp, {.period = 8, .warmup_steps = 100});
//   ...
//   loss.backward();
//   sgd.step();
//   averager.average_parameters();
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ddp/ddp.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct PeriodicModelAveragerOptions {
  std::int64_t period = 4;        // steps from one average to the next; 1: after each
  std::int64_t warmup_steps = 0;  // first steps, in which gradients are averaged, and so weights need not be
};

// Used by the thread that trains; the wrapper must outlive it. An optimizer's state is each rank's own.
class PeriodicModelAverager {
 public:
  // Collective: InvalidArgument for a period below 1 or negative steps, MismatchError where ranks have other options.
  explicit PeriodicModelAverager(DistributedDataParallel& ddp, const PeriodicModelAveragerOptions& options = {});

  // Counts a step, and averages when one is due: after steps warmup_steps + period, + 2 * period, ... Returns whether
  // it did. Collective then. Not in join(), where ranks make no other calls: InvalidArgument.
  bool average_parameters();
  // Collective, at once: before an evaluation, a checkpoint, the end. Replicas are equal afterwards. Not in join().
  void average_now();

  // For a training that goes on: CheckpointState::step.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  void refuse_in_join() const;

  DistributedDataParallel& ddp_;
  const PeriodicModelAveragerOptions options_;
  const std::vector<NamedTensor> parameters_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
#pragma GCC visibility pop
