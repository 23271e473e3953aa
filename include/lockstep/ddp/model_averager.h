// Averages the weights at intervals. With a comm hook that leaves each rank its own gradients (reduce/hooks.h) this is
// local SGD.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = hooks::post_local_sgd({.start_step = 100})});
//   PeriodicModelAverager averager(ddp, {.period = 8, .warmup_steps = 100});
//   ...
//   loss.backward();
//   sgd.step();
//   averager.average_parameters();
//
// The strategy `local_sgd` (train/strategy.h) is made of this class; a program with strategies takes that.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ddp/ddp.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct PeriodicModelAveragerOptions {
  std::int64_t period = 4;        // steps from one average to the next; 1: after each step
  std::int64_t warmup_steps = 0;  // first steps, in which gradients are averaged and weights therefore stay equal
};

// For the training thread; the wrapper must outlive it. Each rank keeps its own optimizer state.
class PeriodicModelAverager {
 public:
  // Collective. Throws InvalidArgument for a period below 1 or negative steps, and MismatchError if the ranks have
  // different options.
  explicit PeriodicModelAverager(DistributedDataParallel& ddp, const PeriodicModelAveragerOptions& options = {});

  // Counts a step. Averages, and returns true, after steps warmup_steps + period, + 2 * period, ...; collective then.
  // Throws InvalidArgument in join(), where ranks make no other calls.
  bool average_parameters();
  // Collective. Averages now: before an evaluation, a checkpoint or the end. Replicas are equal afterwards. Throws in
  // join().
  void average_now();

  // For resuming: CheckpointState::step.
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
