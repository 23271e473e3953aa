// ZeroRedundancyOptimizer: each of n ranks keeps 1/n of an optimizer's state (Rajbhandari, Rasley, Ruwase and He,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5.1: stage 1).
//
//   ls::DistributedDataParallel ddp(net, group);
//   ls::optim::AdamW adamw(ddp.parameters(), {.lr = 1e-3f});
//   const ls::ZeroRedundancyOptimizer zero(ddp, adamw);
//   for (...) {
//     adamw.zero_grad();
//     loss.backward();  // reduce-scatters each bucket: a rank gets the average of its slice
//     adamw.step();     // updates this rank's slices and gathers all ranks' weights
//   }
// The strategy `zero` (train/strategy.h) is made of this class; a program with strategies takes that.
// If all ranks share memory (backend host, one machine), the loss is not scaled and the optimizer is one of
// lockstep/optim, neither call is made. Gradients stay unreduced until step(), which reads all ranks' gradients of this
// rank's slices, updates the slices and writes the weights of all ranks in one pass between two barriers. With two
// ranks and SGD this moves 5 values per element of a slice instead of the 10 of all-reduce and update. The barriers
// compare the pass's number and the number of parameters with a gradient, as calls in backward would.
//
// The wrapper's max_grad_norm and on_nonfinite_gradient work at the end of backward as they do without this class;
// docs/ddp.md describes how the norm is computed. A comm_hook of the wrapper reduces entire buckets in backward, and
// step() then shares only the update and the weights.
//
// A bucket of B bytes is cut into n slices of 64-byte slots; rank r has slice r. If n does not divide the number of
// slots, up to 64 n bytes of zeros are added. Reduce-scatter and all-gather each move (n - 1) / n of that, together as
// much as an all-reduce. Optimizers update each element on its own, so weights have the same bits as with the plain
// step if the backend sums in rank order (docs/collectives.md). Between nodes and on GPUs the order of sums differs,
// and weights are equal within rounding. Replicas are always bitwise equal.
//
// An optimizer that reads whole tensors (Muon) gets whole tensors: each has an owner, so chosen that the ranks have
// about equal work in Newton-Schulz iterations. Backward all-reduces, so each rank has the averages and grad() works;
// step() updates this rank's tensors and broadcasts each from its owner, (n - 1) / n of a bucket's bytes more than an
// all-reduce. Weights have the bits of the plain step. The optimizer may have only some of the wrapper's parameters:
// others then make their own steps for the rest, with all of their state on each rank.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// While it is alive, `optimizer` is used as usual: groups, rates, schedules, loss scaling, checkpoints. Differences:
//   - step() is collective and blocks until all weights are complete (GPU: the default stream waits). If it throws,
//     weights are undefined, and peers may write to them until they have left step() too: continue with a new model or
//     in a new process.
//   - After a reduced pass no rank has complete averages, unless it was an all-reduce (Muon) or a comm_hook: grad() and
//     functions that read or clip gradients throw InvalidArgument until the next zero_grad(), and a backward before it
//     is an error on all ranks. Under no_sync() gradients accumulate as usual.
//   - save_checkpoint() is collective; each rank writes its slices (train/checkpoint.h).
// Construction moves the weights to registered memory, contiguous per bucket, where they are gathered or written in
// place. Existing views of them keep the old memory. The layout of the buckets no longer changes.
class ZeroRedundancyOptimizer {
 public:
  // Collective. Both must outlive it. After its destruction the optimizer's plain step() works only in a world of one,
  // else it throws. Existing state of the optimizer, from steps or a checkpoint, is kept. Throws InvalidArgument with
  // the reason on all ranks if the optimizer's parameters are not exactly the wrapper's (see above for Muon), if a
  // comm_hook does not average, or if another one is active; MismatchError if the ranks have different optimizers.
  ZeroRedundancyOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  // Bytes of this rank's state, except the step counts.
  std::size_t state_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
