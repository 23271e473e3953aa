// `ddp` with ZeroRedundancyOptimizer (ddp/zero.h), which a loop without strategies uses by itself.
//
//     rank 0: model, half of the optimizer's state      rank 1: model, the other half      a process each
//          |   samples of rank 0                             |   samples of rank 1
//     forward, backward                                 forward, backward
//          |==== gradients: reduce-scatter, bucket by bucket, while backward runs ====|
//     optimizer, for its slices                         optimizer, for its slices
//          |==== weights: all-gather ====|                                              equal bits on all ranks
//
// Traffic: gradients and weights, (n - 1) / n of their bytes each: as much as under ddp, half of it after
// backward. Ranks that share memory do all three in one pass after backward.
#include "lockstep/ddp/zero.h"

#include "src/train/strategies/ddp_strategy.h"
#include "src/train/strategies/kinds.h"

namespace lockstep::train {

namespace {

class Zero : public DdpStrategy {
 public:
  Zero(Training training, const StrategyOptions& options)
      : DdpStrategy("zero", std::move(training), options), zero_(*wrapper(), optimizer()) {}

 private:
  ZeroRedundancyOptimizer zero_;
};

}  // namespace

std::unique_ptr<Strategy> make_zero(Training training, const StrategyOptions& options) {
  return std::make_unique<Zero>(std::move(training), options);
}

}  // namespace lockstep::train
