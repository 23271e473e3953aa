// The base of `ddp`, `zero` and `local_sgd`: a process for each device, and a DistributedDataParallel.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/ddp/ddp.h"
#include "lockstep/train/strategy.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

class DdpStrategy : public Strategy {
 public:
  // Collective. `name` begins the messages.
  DdpStrategy(const char* name, Training training, const StrategyOptions& options);

  const char* name() const override { return name_; }
  const std::vector<Device*>& devices() const override { return devices_; }
  float step(const Tensor& inputs, const Tensor& targets) override { return weighted_step(inputs, targets, 1); }
  float weighted_step(const Tensor& inputs, const Tensor& targets, float weight) override;
  nn::Module& model() override { return *replica_.model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::shared_ptr<ProcessGroup> workers() const override { return group_; }
  DistributedDataParallel* wrapper() override { return &ddp_; }
  std::vector<NamedLoss> step_losses() const override { return losses_.values(); }
  std::vector<DeviceTraffic> traffic() const override { return {{devices_.front(), sent_, received_}}; }

 protected:
  // The step of the optimizer, after backward.
  virtual void update();
  // Counts an average of all gradients, or of all weights: the bytes that a reduce-scatter and an all-gather move,
  // whatever carries them.
  void count_average();

  Device& device() const { return *devices_.front(); }
  ProcessGroup& group() const { return *group_; }
  optim::LossScaler* scaler() const { return scaler_; }

 private:
  std::uint64_t ranks() const { return static_cast<std::uint64_t>(group_->world_size()); }
  void count_buffers();

  const char* const name_;
  Training training_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Device*> devices_;
  Replica replica_;
  DistributedDataParallel ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler* const scaler_;  // the optimizer's, or null
  StepLosses losses_;
  std::uint64_t gradient_bytes_ = 0, buffer_bytes_ = 0, sent_ = 0, received_ = 0;
};

}  // namespace lockstep::train
