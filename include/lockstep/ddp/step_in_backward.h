// StepInBackward: the optimizer updates a bucket's parameters as soon as their average has come, while backward still
// runs.
//
//   ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f});
//   const ls::StepInBackward in_backward(ddp, sgd);
//   for (...) {
//     sgd.zero_grad();
//     loss.backward();  // and the step: there is no sgd.step()
//   }
// The weights have the bits of a step() after backward(). Averages are looked for whenever a gradient arrives, on the
// backward thread; what has not come by then is updated at backward's end.
#pragma once

#include <memory>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// While one lives, each backward that is reduced is a step, and optimizer.step() throws InvalidArgument. Until the next
// zero_grad() the gradients are withheld: grad(), and what clips or changes them, throws, for it would come too late.
// Backward passes under no_sync() add up, and the one that reduces them is the step. A tape that read the weights
// before is used up by the step: a second backward over it (retain_graph), or over another forward's of before, throws.
// A pass that an exception ends has updated some buckets and others not.
class StepInBackward {
 public:
  // Both must outlive it. Collective. InvalidArgument on all ranks, with the reason: an optimizer with a loss_scaler,
  // whose step depends on all gradients; find_unused_parameters or static_graph; parameters of the optimizer that are
  // not exactly those of the wrapper; another one, or a ZeroRedundancyOptimizer, at work.
  StepInBackward(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~StepInBackward();
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
