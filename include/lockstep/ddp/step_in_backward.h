// StepInBackward: the optimizer updates the parameters of a bucket as soon as it is averaged, while backward is still
// running.
//
//   ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f});
//   const ls::StepInBackward in_backward(ddp, sgd);
//   for (...) {
//     sgd.zero_grad();
//     loss.backward();  // includes the step: do not call sgd.step()
//   }
// The weights have the same bits as with step() after backward(). The backward thread checks for averages whenever a
// gradient arrives, and updates the rest at the end of backward.
#pragma once

#include <memory>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// While it is alive, each reduced backward is a step, and optimizer.step() throws InvalidArgument. Until the next
// zero_grad(), grad() and functions that clip or change gradients throw, because they would come too late. Passes under
// no_sync() accumulate, and the pass that reduces them is the step. A tape recorded before the step cannot be used
// after it: a second backward over it (retain_graph), or over another earlier forward, throws. A pass that ends with an
// exception has updated only some buckets.
class StepInBackward {
 public:
  // Collective. Both must outlive it. Throws InvalidArgument with the reason on all ranks for an optimizer with a
  // loss_scaler, whose step depends on all gradients; with find_unused_parameters or static_graph; if the optimizer's
  // parameters are not exactly the wrapper's; and if another StepInBackward or ZeroRedundancyOptimizer is active.
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
