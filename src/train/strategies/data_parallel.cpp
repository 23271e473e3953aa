// One process, everything gathered on device 0 in each step; what PyTorch calls DataParallel and Caffe its multi-GPU
// switch.
//
//     device 0: model, optimizer  ---- parameters ---->  device 1: a replica, for this step
//          |  ---- second half of the batch ---->             |
//     forward                                            forward
//          |  <--------- outputs --------------------         |
//     loss, its gradient
//          |  ---- gradient of the outputs ---------->        |
//     backward                                           backward
//          |  <--------- gradients ------------------         |
//     adds them, optimizer
//
// What travels: of n devices, device 0 sends the parameters and receives the gradients n - 1 times a step, beside
// samples, outputs and their gradients; the other devices do so once. Device 0 alone computes the loss and the update
// while the others wait. The weights are ddp's but for the rounding of sums: the loss is one mean over the whole batch.
#include <utility>

#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"
#include "src/train/strategies/device_threads.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"

namespace lockstep::train {

namespace {

class DataParallel : public Strategy {
 public:
  static constexpr const char* kName = "data_parallel";

  DataParallel(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        replicas_(make_replicas(training_, devices_)),
        optimizer_(make_optimizer(kName, training_, first().parameters)),
        outputs_(devices_.size()),
        traffic_(devices_),
        threads_(static_cast<int>(devices_.size())) {
    for (Replica& replica : replicas_) all_.push_back(&replica);
    from_peer_.reserve(first().parameters.size());
    for (const NamedTensor& parameter : first().parameters)
      from_peer_.push_back(Tensor::empty(parameter.tensor.shape(), parameter.tensor.dtype(), *first().device));
  }

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    check_batch(kName, inputs, targets, devices_.size());
    check_no_autocast(kName);
    optimizer_->zero_grad();
    replicate();
    threads_.run([&](int device) { forward(device, inputs); });
    for (Device* device : devices_) traffic_.add(inputs.device(), *device, inputs.bytes() / devices_.size());
    const Tensor gathered = gather_outputs();
    const Tensor loss = loss_of(training_, gathered, targets.to(*first().device));
    traffic_.add(targets.device(), *first().device, targets.bytes());
    loss.backward();
    const float value = loss.item();
    const Tensor gradient = grad(gathered);
    threads_.run([&](int device) { backward(device, gradient); });
    zero_missing_gradients(all_);
    for (Device* device : devices_) traffic_.add(*first().device, *device, gradient.bytes() / devices_.size());
    add_gradients();
    optimizer_->step();
    return value;
  }

  nn::Module& model() override { return *first().model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<DeviceTraffic> traffic() const override { return traffic_.all(); }

 private:
  Replica& first() { return replicas_.front(); }
  int count() const { return static_cast<int>(devices_.size()); }

  void replicate() {
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      Replica& replica = replicas_[i];
      follow_model(first(), replica, traffic_);
      copy_values(first().parameters, replica.parameters, traffic_);
      copy_values(first().buffers, replica.buffers, traffic_);
      for (const NamedTensor& parameter : replica.parameters) clear_grad(parameter.tensor);
    }
  }

  void forward(int number, const Tensor& inputs) {
    Replica& replica = replicas_[static_cast<std::size_t>(number)];
    set_sample_numbers(numbers_of_part(sample_numbers(), inputs, number, count()));
    outputs_[static_cast<std::size_t>(number)] =
        (*replica.model)(rows_of_part(kName, inputs, number, count(), *replica.device));
    replica.device->default_stream().synchronize();
  }

  // On device 0, a leaf: its gradient goes back to the replicas.
  Tensor gather_outputs() {
    Tensors parts;
    for (const Tensor& output : outputs_) {
      parts.push_back(detach(output).to(*first().device));
      traffic_.add(output.device(), *first().device, output.bytes());
    }
    const Tensor gathered = concat(parts);
    require_grad(gathered);
    return gathered;
  }

  void backward(int number, const Tensor& gradient) {
    const Replica& replica = replicas_[static_cast<std::size_t>(number)];
    Tensor output = std::exchange(outputs_[static_cast<std::size_t>(number)], Tensor());
    output.backward({.gradient = rows_of_part(kName, gradient, number, count(), *replica.device)});
    replica.device->default_stream().synchronize();
  }

  void add_gradients() {
    Device& device = *first().device;
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      for (std::size_t p = 0; p < from_peer_.size(); ++p) {
        if (!has_grad(first().parameters[p].tensor)) continue;  // nor elsewhere
        const Tensor own = grad(first().parameters[p].tensor), other = grad(replicas_[i].parameters[p].tensor);
        from_peer_[p].copy_from(other);
        traffic_.add(other.device(), device, other.bytes());
        device.kernels().add(own, from_peer_[p], own, device.default_stream());
      }
    }
  }

  Training training_;
  std::vector<Device*> devices_;
  std::vector<Replica> replicas_;  // of device 0: the model itself
  std::vector<Replica*> all_;      // of them
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensors outputs_, from_peer_;  // by device; by parameter, on device 0
  TrafficCount traffic_;
  DeviceThreads threads_;
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options) {
  return std::make_unique<DataParallel>(std::move(training), options);
}

}  // namespace lockstep::train
