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

#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/variable.h"
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/one_process/device_copies.h"

namespace lockstep::train {

namespace {

class DataParallelStrategy : public Strategy {
 public:
  static constexpr const char* kName = "data_parallel";

  DataParallelStrategy(Training training, const StrategyOptions& options)
      : training_(std::move(training)),
        devices_(options.devices),
        copies_(kName, training_, devices_),
        optimizer_(make_optimizer(kName, training_, first().parameters)),
        outputs_(devices_.size()) {}

  const char* name() const override { return kName; }
  const std::vector<Device*>& devices() const override { return devices_; }

  float step(const Tensor& inputs, const Tensor& targets) override {
    copies_.check_samples(inputs, targets);
    check_no_autocast(kName);
    optimizer_->zero_grad();
    scatter();
    added_.assign(devices_.size(), {});
    outputs_.assign(devices_.size(), {});
    copies_.run([&](int copy) {
      if (copies_.has_rows(inputs, copy)) forward(copy, inputs);
    });
    copies_.count_parts(inputs);
    const Tensor gathered = gather_outputs();
    const nn::AddedLosses gathered_losses;
    const std::vector<Tensors> added = gather_losses(inputs);
    const Tensor loss = total_loss(training_, *first().model, gathered, targets.to(*first().device), gathered_losses,
                                   loss_scaler_of(optimizer_.get()), &copies_.losses());
    copies_.traffic().add(targets.device(), *first().device, targets.bytes());
    loss.backward();
    const float value = loss.item();  // the step's only read; the threads below need the gradient on device 0 anyway
    const Tensor gradient = grad(gathered);
    copies_.run([&](int copy) {
      if (copies_.has_rows(inputs, copy)) backward(copy, gradient, added);
    });
    copies_.count_parts(gradient);
    copies_.sum_gradients(first());
    optimizer_->step();
    return value;
  }

  nn::Module& model() override { return *first().model; }
  optim::Optimizer& optimizer() override { return *optimizer_; }
  void set_lr(float lr) override { optimizer_->set_lr(lr); }
  std::vector<NamedLoss> step_losses() const override { return copies_.losses().values(); }
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
    const nn::AddedLosses added;
    outputs_[static_cast<std::size_t>(copy)] = copies_.forward(copy, inputs);
    added_[static_cast<std::size_t>(copy)] = added.all();
    copies_[copy].device->default_stream().synchronize();
  }

  // On device 0, as a leaf: its gradient goes back to the copies.
  Tensor gather_outputs() {
    Tensors parts;
    for (const Tensor& output : outputs_) {
      if (!output.defined()) continue;  // the device has no samples
      parts.push_back(detach(output).to(*first().device));
      copies_.traffic().add(output.device(), *first().device, output.bytes());
    }
    const Tensor gathered = concat(parts);
    require_grad(gathered);
    return gathered;
  }

  // Adds the means of the losses that the copies' modules added, on device 0. Returns them as they were gathered, by
  // copy: leaves, whose gradients go back to the copies.
  std::vector<Tensors> gather_losses(const Tensor& inputs) {
    std::vector<Tensors> leaves(devices_.size());
    for (std::size_t copy = 0; copy < added_.size(); ++copy) {
      if (!copies_.has_rows(inputs, static_cast<int>(copy))) continue;
      if (added_[copy].size() != added_[0].size())
        throw InvalidArgument("{}: the modules of device {} added {} losses, those of device 0 added {}", kName, copy,
                              added_[copy].size(), added_[0].size());
      for (const NamedTensor& loss : added_[copy]) {
        leaves[copy].push_back(detach(loss.tensor).to(*first().device));
        require_grad(leaves[copy].back());
        copies_.traffic().add(loss.tensor.device(), *first().device, loss.tensor.bytes());
      }
    }
    for (std::size_t i = 0; i < added_[0].size(); ++i) {
      Tensor sum;
      for (std::size_t copy = 0; copy < leaves.size(); ++copy) {
        if (leaves[copy].empty()) continue;
        const float weight = weight_of_part(inputs, static_cast<int>(copy), copies_.count());
        const Tensor loss = weight == 1 ? leaves[copy][i] : leaves[copy][i] * weight;
        sum = sum.defined() ? sum + loss : loss;
      }
      nn::add_loss(sum * (1 / static_cast<float>(leaves.size())), added_[0][i].name);
    }
    return leaves;
  }

  // `added` has the gathered losses, by copy.
  void backward(int copy, const Tensor& gradient, const std::vector<Tensors>& added) {
    const auto at = static_cast<std::size_t>(copy);
    Tensor output = std::exchange(outputs_[at], Tensor());
    const std::vector<NamedTensor> losses = std::exchange(added_[at], {});
    output.backward({.gradient = copies_.part_of(gradient, copy), .retain_graph = !losses.empty()});
    for (std::size_t i = 0; i < losses.size(); ++i)
      if (requires_grad(losses[i].tensor))
        losses[i].tensor.backward(
            {.gradient = grad(added[at][i]).to(*copies_[copy].device), .retain_graph = i + 1 < losses.size()});
    copies_[copy].device->default_stream().synchronize();
  }

  Training training_;
  std::vector<Device*> devices_;
  DeviceCopies copies_;  // the first is the model itself
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensors outputs_;                              // by device
  std::vector<std::vector<NamedTensor>> added_;  // losses that the modules added, by device
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(Training training, const StrategyOptions& options) {
  return std::make_unique<DataParallelStrategy>(std::move(training), options);
}

}  // namespace lockstep::train
