// Variables in one place, a clone on each device; TensorFlow's multi-tower tutorial and Slim's model_deploy.
//
//                     parameter device (the CPU): variables, optimizer
//            variables |    ^ gradients          variables |    ^ gradients
//                      v    |                              v    |
//     device 0: tower_0, forward, backward      device 1: tower_1, forward, backward      a part of the batch each
//
// The parameter device waits for all towers, averages their gradients in the order of the towers, and updates its
// variables. Traffic: all variables to each of n towers and all gradients back, so that the parameter device sends
// and receives n times their bytes in each step; frozen variables only if they have changed; buffers (statistics of
// batch normalisation) to each tower, and back from tower_0. The weights have ddp's bits on one machine, where ddp adds
// in the order of the ranks.
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/one_process/device_copies.h"

namespace lockstep::train {

namespace {

class Towers : public Strategy, public PartLosses {
 public:
  static constexpr const char* kName = "towers";

  Towers(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        variables_(make_replica(training_, *options.parameter_device)),
        towers_(kName, training_, devices_, &variables_),
        optimizer_(make_optimizer(kName, training_, variables_.parameters)),
        losses_(devices_.size()) {}

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    towers_.check_samples(inputs, targets);
    towers_.scatter_changes(variables_);
    towers_.scatter_parameters(variables_);
    towers_.scatter_buffers(variables_);
    losses_ = towers_.compute_gradients(training_, inputs, targets, loss_scaler_of(optimizer_.get()));
    towers_.sum_gradients(variables_, 1 / static_cast<float>(towers_.count()));
    copy_values(towers_[0].buffers, variables_.buffers, towers_.traffic());
    optimizer_->step();
    return mean_of(losses_, inputs);
  }

  nn::Module& model() override { return *variables_.model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override { return towers_.losses().values(); }
  std::vector<DeviceTraffic> traffic() const override { return towers_.traffic().all(); }
  std::vector<NamedLoss> losses() const override {
    std::vector<NamedLoss> named;
    for (std::size_t i = 0; i < losses_.size(); ++i)
      named.push_back({"tower_" + std::to_string(i) + "/loss", losses_[i]});
    return named;
  }

 private:
  Training training_;
  std::vector<Device*> devices_;
  Replica variables_;  // its model does not compute
  DeviceCopies towers_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<float> losses_;  // of the last step, by tower
};

}  // namespace

std::unique_ptr<Strategy> make_towers(Training training, const StrategyOptions& options) {
  return std::make_unique<Towers>(std::move(training), options);
}

}  // namespace lockstep::train
