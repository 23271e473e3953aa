// Each rank trains by itself, and weights are averaged every few steps: DistributedDataParallel with the comm hook
// no_op and a PeriodicModelAverager (ddp/model_averager.h), which a loop without strategies uses by itself.
//
//     rank 0: model, optimizer      rank 1: model, optimizer      a process each, on its own device
//          |   samples of rank 0         |   samples of rank 1
//     forward, backward             forward, backward
//     optimizer                     optimizer                     different weights
//          |==== every .average_period steps: all-reduce of the weights ====|        equal bits on all ranks
//
// Traffic: no gradients; weights, 2 (n - 1) / n of their bytes from and to each of n ranks an average. Buffers are
// always each rank's own: rank 0's in each forward would make the ranks wait for each other in every step. So is a
// LossScaler: it skips its rank's steps, and takes the smallest scale of all ranks at each average.
#include <array>
#include <span>

#include "lockstep/comm/agreement.h"
#include "lockstep/ddp/model_averager.h"
#include "lockstep/reduce/hooks.h"
#include "src/train/strategies/ddp_strategy.h"
#include "src/train/strategies/kinds.h"

namespace lockstep::train {

namespace {

constexpr std::int64_t kAveragePeriod = 4;

StrategyOptions without_messages(StrategyOptions options) {
  if (!options.ddp) options.ddp.emplace();
  options.ddp->comm_hook = hooks::no_op();
  options.ddp->forward_sync_buffers = false;
  return options;
}

class LocalSgd : public DdpStrategy, public WeightAverager {
 public:
  LocalSgd(Training training, const StrategyOptions& options)
      : DdpStrategy("local_sgd", std::move(training), without_messages(options)),
        averager_(*wrapper(), {.period = options.average_period == 0 ? kAveragePeriod : options.average_period}) {}

  // Each rank steps by itself: gradients of a part of the samples are not averaged with the others'.
  float weighted_step(const Tensor& inputs, const Tensor& targets, float weight) override {
    if (weight != 1) return Strategy::weighted_step(inputs, targets, weight);
    return DdpStrategy::weighted_step(inputs, targets, weight);
  }

  void average_weights() override {
    averager_.average_now();
    averager_.set_steps(0);
    end_average();
  }

 private:
  void update() override {
    abort_on_error(group(), [this] { optimizer().step(); });  // a rank's own gradients may fail it alone
    if (averager_.average_parameters()) end_average();
  }

  // All ranks go on from one loss scale, as from the same weights: the smallest one.
  void end_average() {
    count_average();
    if (scaler() == nullptr) return;
    const Tensor state = scaler()->state_on(device()), host = state.to(cpu_device()).clone();
    float* const values = host.data<float>();
    std::array<float, 3> least{values[0], values[2], -values[3]};  // scale, good steps, skipped steps
    group().all_reduce(std::span<float>(least), ReduceOp::kMin, {.purpose = {"loss scale"}});
    values[0] = least[0], values[2] = least[1], values[3] = -least[2];
    state.copy_from(host);
  }

  PeriodicModelAverager averager_;
};

}  // namespace

std::unique_ptr<Strategy> make_local_sgd(Training training, const StrategyOptions& options) {
  return std::make_unique<LocalSgd>(std::move(training), options);
}

}  // namespace lockstep::train
