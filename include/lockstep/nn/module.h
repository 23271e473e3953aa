// Module: named parameters, named buffers, named children, and a forward.
//
//   struct Net : nn::Module {
//     nn::Linear hidden{784, 128, {.activation = Activation::kReLU}}, out{128, 10};
//     Net() { add("hidden", hidden); add("out", out); }
//     Tensor forward(const Tensor& x) override { return out(hidden(flatten(x))); }
//   };
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep::nn {

using lockstep::NamedTensor;

// Neither copied nor moved: children are members of the derived class and are known by address.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Tensor forward(const Tensor& x) = 0;
  Tensor operator()(const Tensor& x);                    // forward, seen by summary()
  virtual std::string kind() const { return "Module"; }  // "Conv2d", for summary()

  // Depth first, in order of registration: the same on all ranks that build the same module.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers() const;  // state that is no parameter (statistics): saved, broadcast, not trained
  std::vector<Tensor> parameters() const;

  // Moves parameters, their gradients and buffers; handles that users hold move along, and so does an optimizer's state at its next
  // step. Before the module is wrapped in DistributedDataParallel, not after. Blocks as Tensor::copy_from does.
  void to(Device& device);
  void train(bool on = true);  // children too
  bool is_training() const { return training_; }

  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  // Expires when the module goes: for those who hold a reference to it.
  std::weak_ptr<const void> lifetime() const { return alive_; }
  // The module's own tensors, children's left out.
  const std::vector<NamedTensor>& own_parameters() const { return parameters_; }
  const std::vector<NamedTensor>& own_buffers() const { return buffers_; }

 protected:
  // Names are unique within the module and hold no dot; InvalidArgument otherwise.
  void add(const std::string& name, Module& child);
  Tensor& add_parameter(const std::string& name, Tensor& parameter);  // marks it as requiring a gradient
  Tensor& add_buffer(const std::string& name, Tensor& buffer);

 private:
  void check_name(const std::string& name) const;

  std::vector<NamedTensor> parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  bool training_ = true;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// A table for people: name, kind, output shape for an input of `input_shape`, parameters; the totals below. Runs one
// forward pass of zeros without recording.
std::string summary(Module& module, const Shape& input_shape);

}  // namespace lockstep::nn
