// DistributedDataParallel as a strategy.
//
//     rank 0: model, optimizer      rank 1: model, optimizer      a process each, on its own device
//          |   samples of rank 0         |   samples of rank 1
//     forward, backward             forward, backward
//          |==== gradients: all-reduce, bucket by bucket, while backward runs ====|
//     optimizer                     optimizer                     equal bits on all ranks
//
// Traffic: gradients alone, 2 (n - 1) / n of their bytes from and to each of n ranks a step; buffers (statistics
// of batch normalisation) from rank 0 if the model has any.
#include "src/train/strategies/ddp_strategy.h"

#include <cmath>

#include "lockstep/comm/agreement.h"
#include "src/ddp/checks/replicas.h"
#include "src/ddp/wrapper/agreed_options.h"
#include "src/optim/step_parts.h"
#include "src/train/strategies/kinds.h"

namespace lockstep::train {

namespace {

// Ranks that scale their losses differently would average gradients of different scales.
optim::LossScaler* checked_scaler(const char* name, ProcessGroup& group, optim::Optimizer& optimizer) {
  optim::LossScaler* const scaler = optim::StepParts(optimizer).loss_scaler();
  check_same_on_all_ranks(group, name, {description_of(scaler)}, "have different LossScalers");
  return scaler;
}

}  // namespace

DdpStrategy::DdpStrategy(const char* name, Training training, const StrategyOptions& options)
    : name_(name),
      training_(std::move(training)),
      group_(group_of(options)),
      devices_({&group_->local_device()}),
      replica_(on_all_ranks(group_, [this] { return make_replica(training_, device()); })),
      ddp_(*replica_.model, group_, options.ddp.value_or(DistributedDataParallelOptions())),
      optimizer_(on_all_ranks(group_, [&] { return make_optimizer(name, training_, ddp_.parameters()); })),
      scaler_(checked_scaler(name, *group_, *optimizer_)) {
  for (const BucketLayout& bucket : ddp_.reducer().buckets()) gradient_bytes_ += bucket.bytes;
  const DistributedDataParallelOptions given = options.ddp.value_or(DistributedDataParallelOptions());
  if (!given.forward_sync_buffers) return;
  for (const NamedTensor& buffer : without(*replica_.model, replica_.buffers, given.ignored_parameters))
    buffer_bytes_ += buffer.tensor.bytes();
}

float DdpStrategy::weighted_step(const Tensor& inputs, const Tensor& targets, float weight) {
  check_samples(name_, inputs, targets);
  if (!std::isfinite(weight) || weight < 0)
    throw InvalidArgument("{}: rank {}: got weight {}; expected a finite number of 0 or more", name_, group_->rank(),
                          weight);
  optimizer_->zero_grad();
  const nn::AddedLosses added;
  const Tensor outputs = ddp_(inputs.to(device()));
  const Tensor loss = total_loss(training_, *replica_.model, outputs, targets.to(device()), added, scaler_, &losses_);
  weighted_backward(loss, weight);
  update();
  count_buffers();
  return loss.item();
}

void DdpStrategy::update() {
  optimizer_->step();
  count_average();
}

void DdpStrategy::count_average() {
  const std::uint64_t moved = 2 * (ranks() - 1) * gradient_bytes_ / ranks();
  sent_ += moved;
  received_ += moved;
}

void DdpStrategy::count_buffers() {
  const bool gives_buffers = group_->rank() == 0;
  sent_ += gives_buffers ? (ranks() - 1) * buffer_bytes_ : 0;
  received_ += gives_buffers ? 0 : buffer_bytes_;
}

std::unique_ptr<Strategy> make_ddp(Training training, const StrategyOptions& options) {
  return std::make_unique<DdpStrategy>("ddp", std::move(training), options);
}

}  // namespace lockstep::train
