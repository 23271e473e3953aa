// DataParallel: a module that computes on several devices of this process, as PyTorch's nn.DataParallel, for programs
// that keep their own loop, loss and optimizer.
//
//   Net net;
//   net.to(*devices.front());
//   train::DataParallel model(net, devices);
//   optim::SGD sgd(net.named_parameters(), {.lr = 0.1F});
//   for (auto& [x, targets] : loader) {
//     const Tensor y = model(x);                       // rows of x on all devices, outputs on the first
//     sgd.zero_grad();
//     nn::cross_entropy(y, targets).backward();        // gradients of all devices, summed in net's
//     sgd.step();
//   }
//
// Each forward copies the weights to the other devices, and each backward copies gradients back, while the first device
// alone computes loss and update: DistributedDataParallel is faster (docs/results/strategies.md). The strategy
// `data_parallel` (train/strategy.h) is the same scheme with loss and optimizer.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// The module itself has the weights and is the only child, "module", so that names begin with "module." as in PyTorch;
// optimizers and checkpoints take the module or this. Use it from one thread.
class DataParallel : public nn::Module {
 public:
  using MakeModule = std::function<std::unique_ptr<nn::Module>()>;

  // `module` is on the first device, which also gets the outputs, and must outlive this. `make` builds a module of the
  // same structure; it is called once for each device. `devices` empty: the logical GPUs, or the logical CPUs if there
  // are no GPUs. Throws InvalidArgument for a module that is on another device, for a copy of another structure, for
  // devices that come twice, and in a job of several ranks, each of which would train by itself.
  DataParallel(nn::Module& module, const std::vector<Device*>& devices, const MakeModule& make);
  // For a class that is built without arguments.
  template <std::derived_from<nn::Module> Net>
  requires(std::default_initializable<Net> &&
           !std::same_as<Net, nn::Module>) explicit DataParallel(Net& module, const std::vector<Device*>& devices = {})
      : DataParallel(module, devices, [] { return std::make_unique<Net>(); }) {}
  ~DataParallel() override;

  // Every input has the batch as its first dimension. The rows are cut as by torch.chunk: ceil(rows / devices) for each
  // device, fewer for the last; devices without rows do not compute. Outputs are joined along the first dimension on
  // the first device; scalars become a vector with one element for each device that computed. Losses that modules add
  // (nn/added_losses.h) are averaged, weighted by rows. Buffers are those of the first device. Dropout draws what one
  // device would draw. Modes and frozen parameters of the module are followed. Blocks until the devices have computed.
  //
  // backward() of a result computes on all devices at once and adds to the module's gradients; a trainable parameter
  // that no device reached gets zeros. Throws InvalidArgument for inputs with different numbers of rows, without rows,
  // and what the modules throw (if several devices throw, the error of the first).
  Tensors forward_all(const Tensors& inputs) override;
  static constexpr const char* kKind = "DataParallel";
  std::string kind() const override { return kKind; }

  nn::Module& module() const;
  const std::vector<Device*>& devices() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // tapes refer to it
};

}  // namespace lockstep::train
#pragma GCC visibility pop
