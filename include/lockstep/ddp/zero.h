// ZeroRedundancyOptimizer: each of n ranks keeps 1/n of an optimizer's state (Rajbhandari, Rasley, Ruwase and He,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5.1: stage 1).
//
//   ls::DistributedDataParallel ddp(net, group);
//   ls::optim::AdamW adamw(ddp.parameters(), {.lr = 1e-3f});
//   const ls::ZeroRedundancyOptimizer zero(ddp, adamw);
//   for (...) {
//     adamw.zero_grad();
//     loss.backward();  // reduce-scatters each bucket: a rank gets the average of its slice; see below
//     adamw.step();     // updates this rank's slices, and gathers all ranks' weights
//   }
// Where all ranks share memory (backend host, one machine), no loss is scaled and the optimizer is one of
// lockstep/optim, neither is called: gradients stay as they are until step(), which in one pass between two barriers
// reads all ranks' gradients of this rank's slices, updates these, and writes the weights of all ranks. With two ranks
// and SGD that moves 5 values an element of a slice, where all-reduce and update move 10. What calls in backward would
// compare, the barriers do: the pass's number, and how many parameters have a gradient.
//
// The wrapper's max_grad_norm and on_nonfinite_gradient do at the end of backward what they do without this class:
// docs/ddp.md says how the norm is taken. A comm_hook of the wrapper reduces whole buckets in backward, and step()
// shares the update and the weights alone.
//
// A bucket of B bytes is cut into n slices of whole 64-byte slots, rank r has slice r; where n does not divide the
// slots, up to 64 n bytes of zeros are added. Reduce-scatter and all-gather move (n - 1) / n of that each, together
// what an all-reduce of it moves. Optimizers update each element by itself, so that weights have the bits of the plain
// step where the backend sums in rank order (docs/collectives.md); between nodes, and on GPUs, sums are taken in
// another order: equal within rounding. Replicas are equal bit for bit in any case.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/ddp/ddp.h"
#include "lockstep/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace lockstep {

// While one lives, `optimizer` is used as always: groups, rates, schedules, loss scaling, checkpoints. But
//   - step() is collective, and blocks until all weights are there (a GPU: orders the default stream behind them).
//   Where it throws, weights
//     are undefined, and peers may write them until they have left step(), too: go on with a new model, or in a new
//     process;
//   - no rank has the whole average of a gradient that was reduced, unless a comm_hook left it: grad(), and what reads
//   or clips gradients,
//     throws InvalidArgument until the next zero_grad(), and a backward before that is an error on all ranks. Under
//     no_sync() gradients add up as always;
//   - save_checkpoint() is collective, each rank writes its slices: see train/checkpoint.h.
// Weights stay where they are used, in memory that construction moves them to, a bucket's beside each other:
// registered, and gathered or written in place. Views that were made of them before keep the old memory. The buckets'
// layout stays as it is from now on.
class ZeroRedundancyOptimizer {
 public:
  // Collective. Both must outlive it; its end gives the optimizer back to plain steps in a world of one alone, else
  // step() throws. State that the optimizer has got by then, by steps or a load, is kept. InvalidArgument on all ranks,
  // with the reason: parameters of the optimizer that are not exactly those of the wrapper, an optimizer that is not
  // elementwise, a comm_hook that does not average, another one at work. MismatchError: the ranks have different
  // optimizers.
  ZeroRedundancyOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  // Bytes of this rank's state, without the few that count steps.
  std::size_t state_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
#pragma GCC visibility pop
