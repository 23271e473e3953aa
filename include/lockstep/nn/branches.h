// Branches: independent modules of one layer, such as the towers of an Inception block or of a model for two inputs.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

enum class Join : std::uint8_t {
  kConcat,  // one output: along .axis
  kAdd,     // one output: the sum, in the order of the branches
  kNone,    // as many outputs as branches
};

struct BranchesOptions {
  Join join = Join::kConcat;
  int axis = -1;                // for kConcat; negative: from the end. The last one has the channels
  bool one_input_each = false;  // true: input i goes to branch i; false: all inputs go to each branch
};

// Bytes that a branch's device, if it is not that of the first input, has sent and received: inputs and outputs of
// forward passes, and their gradients where one is wanted.
struct BranchTraffic {
  std::uint64_t sent = 0, received = 0;
};

// Owns its branches, which have one output each. Branches on different devices compute at the same time, forward and
// backward (autograd/parallel_apply.h); the bits are those of one device. Children are named "0", "1", ... or by the
// given name.
//
// Place branches by hand with branch(i).to(device), or all with place(); the strategy model_parallel does so itself.
// Losses that modules of a branch add (nn/added_losses.h) are added by the layer, in the order of the branches.
// Inputs are copied to each branch's device, and outputs to the device of the first input, where they are joined.
class Branches : public Module {
 public:
  explicit Branches(const BranchesOptions& options = {}) : options_(options) {}
  template <typename Layer, typename... Args> Layer& append(Args&&... args) {
    return append_named<Layer>(std::to_string(branches_.size()), std::forward<Args>(args)...);
  }
  template <typename Layer, typename... Args> Layer& append_named(const std::string& name, Args&&... args) {
    auto branch = std::make_unique<Layer>(std::forward<Args>(args)...);
    Layer& added = *branch;
    add(name, added);
    branches_.push_back(std::move(branch));
    traffic_.emplace_back();
    return added;
  }

  std::size_t size() const { return branches_.size(); }
  Module& branch(std::size_t index) const { return *branches_.at(index); }
  // Moves branch i to devices[i % devices.size()]. A branch without parameters and buffers computes there, too, until
  // the next call; otherwise on the device of the first input. Throws InvalidArgument without a device.
  void place(const std::vector<Device*>& devices);

  BranchTraffic traffic(std::size_t branch) const { return traffic_.at(branch); }

  // Throws InvalidArgument if there is no branch, for another number of inputs than .one_input_each wants, and for a
  // branch with several outputs.
  Tensors forward_all(const Tensors& inputs) override;
  std::string kind() const override { return "Branches"; }
  std::string extra_repr() const override;

 private:
  Device& device_of(std::size_t branch, Device& otherwise) const;
  std::vector<NamedTensor> run(std::size_t branch, const Tensors& inputs, Device& device);

  const BranchesOptions options_;
  std::vector<std::unique_ptr<Module>> branches_;
  std::vector<BranchTraffic> traffic_;  // by branch
  std::vector<Device*> placed_;         // by branch; empty before place()
};

}  // namespace lockstep::nn
#pragma GCC visibility pop
