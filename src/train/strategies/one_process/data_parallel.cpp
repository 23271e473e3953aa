// One process, which gathers everything on device 0 in each step; PyTorch calls this DataParallel, Caffe its multi-GPU
// option.
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
// Traffic: of n devices, device 0 sends the parameters and receives the gradients n - 1 times in each step, next
// to samples, outputs and their gradients; the other devices do so once. Device 0 alone computes the loss and the
// update while the others wait. The weights are ddp's except for the rounding of sums: the loss is one mean over the
// batch.
#include <utility>

#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/variable.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/one_process/device_copies.h"

namespace lockstep::train {

namespace {

class DataParallel : public Strategy {
 public:
  static constexpr const char* kName = "data_parallel";

  DataParallel(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        copies_(kName, training_, devices_),
        optimizer_(make_optimizer(kName, training_, first().parameters)),
        outputs_(devices_.size()) {}

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    copies_.check_batch(inputs, targets);
    check_no_autocast(kName);
    optimizer_->zero_grad();
    scatter();
    copies_.run([&](int copy) { forward(copy, inputs); });
    copies_.count_parts(inputs);
    const Tensor gathered = gather_outputs();
    const Tensor loss = loss_of(training_, gathered, targets.to(*first().device));
    copies_.traffic().add(targets.device(), *first().device, targets.bytes());
    loss.backward();
    const float value = loss.item();  // the step's only read; the threads below need the gradient on device 0 anyway
    const Tensor gradient = grad(gathered);
    copies_.run([&](int copy) { backward(copy, gradient); });
    copies_.count_parts(gradient);
    copies_.sum_gradients(first());
    optimizer_->step();
    return value;
  }

  nn::Module& model() override { return *first().model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<DeviceTraffic> traffic() const override { return copies_.traffic().all(); }

 private:
  Replica& first() { return copies_[0]; }

  void scatter() {
    copies_.scatter_changes(first());
    copies_.scatter_parameters(first());
    copies_.scatter_buffers(first());
    for (int i = 1; i < copies_.count(); ++i)
      for (const NamedTensor& parameter : copies_[i].parameters) clear_grad(parameter.tensor);
  }

  void forward(int copy, const Tensor& inputs) {
    outputs_[static_cast<std::size_t>(copy)] = copies_.forward(copy, inputs);
    copies_[copy].device->default_stream().synchronize();
  }

  // On device 0, as a leaf: its gradient goes back to the copies.
  Tensor gather_outputs() {
    Tensors parts;
    for (const Tensor& output : outputs_) {
      parts.push_back(detach(output).to(*first().device));
      copies_.traffic().add(output.device(), *first().device, output.bytes());
    }
    const Tensor gathered = concat(parts);
    require_grad(gathered);
    return gathered;
  }

  void backward(int copy, const Tensor& gradient) {
    Tensor output = std::exchange(outputs_[static_cast<std::size_t>(copy)], Tensor());
    output.backward({.gradient = copies_.part_of(gradient, copy)});
    copies_[copy].device->default_stream().synchronize();
  }

  Training training_;
  std::vector<Device*> devices_;
  DeviceCopies copies_;  // the first is the model itself
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensors outputs_;  // by device
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options) {
  return std::make_unique<DataParallel>(std::move(training), options);
}

}  // namespace lockstep::train
