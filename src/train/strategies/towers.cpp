// Variables in one place, a clone on each device; TensorFlow's multi-tower tutorial and Slim's model_deploy.
//
//                     parameter device (the CPU): variables, optimizer
//            variables |    ^ gradients          variables |    ^ gradients
//                      v    |                              v    |
//     device 0: tower_0, forward, backward      device 1: tower_1, forward, backward      a part of the batch each
//
// The parameter device waits for all towers, averages their gradients in the order of the towers, and updates its
// variables: the point in which they meet. What travels: all variables to each of n towers and all gradients back, so
// that the parameter device sends and receives n times their bytes a step; frozen variables only when they have
// changed; buffers (statistics of batch normalisation) to each tower, and back from tower_0. The weights have ddp's
// bits on one machine, where ddp adds in the order of the ranks.
#include <algorithm>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"
#include "src/train/strategies/device_threads.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

std::vector<Device*> with(std::vector<Device*> devices, Device* other) {
  if (std::find(devices.begin(), devices.end(), other) == devices.end()) devices.push_back(other);
  return devices;
}

class Towers : public Strategy {
 public:
  static constexpr const char* kName = "towers";

  Towers(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        variables_(make_replica(training_, *options.parameter_device)),
        towers_(make_replicas(training_, devices_)),
        optimizer_(make_optimizer(kName, training_, variables_.parameters)),
        losses_(devices_.size()),
        traffic_(with(devices_, options.parameter_device)),
        threads_(static_cast<int>(devices_.size())) {
    for (Replica& tower : towers_) {
      load_state(variables_, tower);
      replicas_.push_back(&tower);
    }
    for (const NamedTensor& parameter : variables_.parameters) {
      bind_grad(parameter.tensor, parameter.tensor.device().allocate(parameter.tensor.bytes()));
      from_tower_.push_back(Tensor::empty(parameter.tensor.shape(), parameter.tensor.dtype(), *variables_.device));
    }
  }

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(kName, inputs, targets, devices_.size());
    for (Replica& tower : towers_) {
      follow_model(variables_, tower, traffic_);
      copy_values(variables_.parameters, tower.parameters, traffic_);
      copy_values(variables_.buffers, tower.buffers, traffic_);
      traffic_.add(inputs.device(), *tower.device, (inputs.bytes() + targets.bytes()) / towers_.size());
    }
    threads_.run([&](int tower) { compute(tower, inputs, targets); });
    zero_missing_gradients(replicas_);
    average_gradients();
    copy_values(towers_.front().buffers, variables_.buffers, traffic_);
    optimizer_->step();
    double sum = 0;
    for (const float loss : losses_) sum += loss;
    return static_cast<float>(sum / static_cast<double>(losses_.size()));
  }

  nn::Module& model() override { return *variables_.model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<DeviceTraffic> traffic() const override { return traffic_.all(); }
  std::vector<NamedLoss> losses() const override {
    std::vector<NamedLoss> named;
    for (std::size_t i = 0; i < losses_.size(); ++i)
      named.push_back({"tower_" + std::to_string(i) + "/loss", losses_[i]});
    return named;
  }

 private:
  void compute(int number, const Tensor& inputs, const Tensor& targets) {
    const Replica& tower = towers_[static_cast<std::size_t>(number)];
    const int parts = static_cast<int>(towers_.size());
    set_sample_numbers(numbers_of_part(sample_numbers(), inputs, number, parts));
    for (const NamedTensor& parameter : tower.parameters) clear_grad(parameter.tensor);
    const Tensor outputs = (*tower.model)(rows_of_part(kName, inputs, number, parts, *tower.device));
    const Tensor loss = loss_of(training_, outputs, rows_of_part(kName, targets, number, parts, *tower.device));
    loss.backward();
    losses_[static_cast<std::size_t>(number)] = loss.item();
    tower.device->default_stream().synchronize();
  }

  void average_gradients() {
    Device& device = *variables_.device;
    const float factor = 1 / static_cast<float>(towers_.size());
    for (std::size_t p = 0; p < variables_.parameters.size(); ++p) {
      clear_grad(variables_.parameters[p].tensor);
      if (!has_grad(towers_[0].parameters[p].tensor)) continue;  // nor in the other towers
      const Tensor average = grad(variables_.parameters[p].tensor);
      for (std::size_t i = 0; i < towers_.size(); ++i) {
        const Tensor gradient = grad(towers_[i].parameters[p].tensor);
        const Tensor& here = i == 0 ? average : from_tower_[p];
        here.copy_from(gradient);
        traffic_.add(gradient.device(), device, gradient.bytes());
        if (i > 0) device.kernels().add(average, here, average, device.default_stream());
      }
      device.kernels().scale(average, factor, average, device.default_stream());
      mark_grad_written(variables_.parameters[p].tensor);
    }
  }

  Training training_;
  std::vector<Device*> devices_;
  Replica variables_;  // its model does not compute
  std::vector<Replica> towers_;
  std::vector<Replica*> replicas_;  // the towers
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensors from_tower_;  // by parameter, on the parameter device
  std::vector<float> losses_;
  TrafficCount traffic_;
  DeviceThreads threads_;
};

}  // namespace

std::unique_ptr<Strategy> make_towers(Training training, const StrategyOptions& options) {
  return std::make_unique<Towers>(std::move(training), options);
}

}  // namespace lockstep::train
