// DistributedDataParallel behind the interface of strategies.
//
//     rank 0: model, optimizer      rank 1: model, optimizer      a process each, on its own device
//          |   samples of rank 0         |   samples of rank 1
//     forward, backward             forward, backward
//          |==== gradients: all-reduce, bucket by bucket, while backward runs ====|
//     optimizer                     optimizer                     equal bits on all ranks
//
// What travels: gradients alone, 2 (n - 1) / n of their bytes from and to each of n ranks a step; buffers (statistics
// of batch normalisation) from rank 0 where the model has some.
//
// The strategy `zero` is the same with ZeroRedundancyOptimizer: gradients are reduce-scattered while backward runs,
// each rank's optimizer updates a slice, and weights are gathered. As many bytes travel, half of them after backward; a
// rank has 1/n of the optimizer's state. Ranks that share memory do all three in one pass behind backward.
//
// The strategy `local_sgd` averages no gradients: each rank makes its own steps, and every .average_period of them
// weights are averaged. The bytes of a gradient's all-reduce travel that often. Between averages each rank has weights
// of its own, and always buffers of its own: rank 0's in each forward would make the ranks wait for each other in every
// step. So does a LossScaler: it is each rank's own, skips that rank's steps, and takes the smallest scale of all ranks
// at each average.
#include "lockstep/ddp/ddp.h"
#include "lockstep/comm/agreement.h"

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "lockstep/ddp/model_averager.h"
#include "lockstep/ddp/zero.h"
#include "lockstep/reduce/hooks.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/step_parts.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

constexpr std::int64_t kAveragePeriod = 4;

bool is_named(std::string_view name, const char* strategy) { return name == strategy; }

DistributedDataParallelOptions wrapper_options(const char* name, const StrategyOptions& options) {
  DistributedDataParallelOptions given = options.ddp.value_or(DistributedDataParallelOptions());
  if (is_named(name, "local_sgd")) {
    given.comm_hook = hooks::no_op();
    given.forward_sync_buffers = false;
  }
  return given;
}

// Ranks that scale their losses differently would average gradients of different scales.
optim::LossScaler* checked_scaler(const char* name, ProcessGroup& group, optim::Optimizer& optimizer) {
  optim::LossScaler* const scaler = optim::StepParts(optimizer).loss_scaler();
  check_same_on_all_ranks(group, name, {description_of(scaler)}, "have different LossScalers");
  return scaler;
}

class Ddp : public Strategy {
 public:
  Ddp(const char* name, Training training, const StrategyOptions& options)
      : name_(name),
        training_(std::move(training)),
        group_(group_of(options)),
        devices_({&group_->local_device()}),
        replica_(on_all_ranks(group_, [this] { return make_replica(training_, *devices_.front()); })),
        ddp_(*replica_.model, group_, wrapper_options(name, options)),
        optimizer_(on_all_ranks(group_, [&] { return make_optimizer(name, training_, ddp_.parameters()); })),
        scaler_(checked_scaler(name, *group_, *optimizer_)) {
    if (is_named(name, "zero")) zero_.emplace(ddp_, *optimizer_);
    if (is_named(name, "local_sgd"))
      averager_.emplace(ddp_, PeriodicModelAveragerOptions{
                                  .period = options.average_period == 0 ? kAveragePeriod : options.average_period});
    for (const BucketLayout& bucket : ddp_.reducer().buckets()) gradient_bytes_ += bucket.bytes;
    const DistributedDataParallelOptions given = wrapper_options(name, options);
    if (given.forward_sync_buffers)
      for (const NamedTensor& buffer : without(*replica_.model, replica_.buffers, given.ignored_parameters))
        buffer_bytes_ += buffer.tensor.bytes();
  }

  const char* name() const override { return name_; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(name(), inputs, targets, 1);
    optimizer_->zero_grad();
    const Tensor loss = loss_of(training_, ddp_(inputs.to(*devices_.front())), targets.to(*devices_.front()));
    loss.backward();
    if (averager_)  // a rank's own gradients may fail it alone
      abort_on_error(group_, [this] { optimizer_->step(); });
    else
      optimizer_->step();
    count_buffers();
    if (!averager_)
      count_average();
    else if (averager_->average_parameters())
      end_average();
    return loss.item();
  }

  void average_weights() override {
    if (!averager_) return;
    averager_->average_now();
    averager_->set_steps(0);
    end_average();
  }

  nn::Module& model() override { return *replica_.model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::shared_ptr<ProcessGroup> workers() const override { return group_; }
  DistributedDataParallel* wrapper() override { return &ddp_; }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

 private:
  std::uint64_t ranks() const { return static_cast<std::uint64_t>(group_->world_size()); }
  // Of gradients or weights: the bytes that a reduce-scatter and an all-gather move, whatever carries them.
  void count_average() {
    const std::uint64_t moved = 2 * (ranks() - 1) * gradient_bytes_ / ranks();
    sent_ += moved;
    received_ += moved;
  }
  // All ranks go on from one loss scale, as from the same weights: the smallest one.
  void end_average() {
    count_average();
    if (scaler_ == nullptr) return;
    const Tensor state = scaler_->state_on(*devices_.front()), host = state.to(cpu_device()).clone();
    float* const values = host.data<float>();
    std::array<float, 3> least{values[0], values[2], -values[3]};  // scale, good steps, skipped steps
    group_->all_reduce(std::span<float>(least), ReduceOp::kMin, {.purpose = {"loss scale"}});
    values[0] = least[0], values[2] = least[1], values[3] = -least[2];
    state.copy_from(host);
  }
  void count_buffers() {
    const bool gives_buffers = group_->rank() == 0;
    sent_ += gives_buffers ? (ranks() - 1) * buffer_bytes_ : 0;
    received_ += gives_buffers ? 0 : buffer_bytes_;
  }

  const char* const name_;
  Training training_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Device*> devices_;
  Replica replica_;
  DistributedDataParallel ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler* const scaler_;  // the optimizer's, or null
  std::optional<ZeroRedundancyOptimizer> zero_;
  std::optional<PeriodicModelAverager> averager_;
  std::uint64_t gradient_bytes_ = 0, buffer_bytes_ = 0, sent_ = 0, received_ = 0;
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(Training training, const StrategyOptions& options) {
  return std::make_unique<Ddp>("ddp", std::move(training), options);
}
std::unique_ptr<Strategy> make_zero(Training training, const StrategyOptions& options) {
  return std::make_unique<Ddp>("zero", std::move(training), options);
}
std::unique_ptr<Strategy> make_local_sgd(Training training, const StrategyOptions& options) {
  return std::make_unique<Ddp>("local_sgd", std::move(training), options);
}

}  // namespace lockstep::train
