// Module: named parameters, named buffers, named children, and a forward.
//
//   struct Net : nn::Module {
//     nn::Linear hidden{784, 128, {.activation = Activation::kReLU}}, out{128, 10};
//     Net() { add("hidden", hidden); add("out", out); }
//     Tensor forward(const Tensor& x) override { return out(hidden(flatten(x))); }
//   };
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/nn/state_dict.h"
#include "lockstep/tensor/named_tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

using lockstep::NamedTensor;

// Modules are neither copied nor moved: children are members of the derived class and are registered by address.
class Module {
 public:
  Module();
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // A module overrides one of these two. forward() has one input and one output. forward_all() has any number of each
  // and begins with check_inputs(). By default each calls the other. Throws InvalidArgument with kind() and both
  // counts: if forward() is overridden and called with another number of inputs than one; if forward() is called and
  // forward_all() returns another number of outputs than one. Also throws if neither is overridden.
  virtual Tensor forward(const Tensor& x);
  virtual Tensors forward_all(const Tensors& inputs);

  // Calls forward, and lets summary() observe it: net(x) and net(a, b) return the only output, net(Tensors{a, b})
  // returns all outputs.
  Tensor operator()(const Tensor& x);
  Tensors operator()(const Tensors& inputs);
  template <typename... More>
  requires(std::convertible_to<const More&, Tensor>&&...) Tensor operator()(const Tensor& first, const Tensor& second,
                                                                            const More&... more) {
    return call_for_one({first, second, more...});
  }

  // For summary() and operator<<: "Conv2d", and the text in its parentheses, "3, 64, kernel=(5, 5)".
  virtual std::string kind() const { return "Module"; }
  virtual std::string extra_repr() const { return ""; }

  // Depth first, in order of registration, which is the same on all ranks that build the same module.
  std::vector<NamedTensor> named_parameters() const;
  // State that is not trained, such as statistics; it is saved and broadcast.
  std::vector<NamedTensor> named_buffers() const;
  std::vector<Tensor> parameters() const;

  // The parameters, then the buffers, without undefined ones. The tensors share the module's memory.
  std::vector<NamedTensor> state_dict() const;
  // Copies values into parameters and buffers, in place, across devices. Blocks as Tensor::copy_from does. Throws
  // InvalidArgument that lists every difference and counts each kind, and then changes nothing: for missing and
  // unexpected names (returned instead if .strict is false), and always for duplicate names, undefined tensors, and
  // other shapes or types. Floating types are converted and rounded to nearest. If several names share memory (tied
  // weights), one of them suffices. For a module in DistributedDataParallel, every rank must load the same values.
  IncompatibleKeys load_state_dict(const std::vector<NamedTensor>& entries, const LoadStateDictOptions& options = {});
  // The same for a file (load_safetensors()), possibly PyTorch's. Also rejects convolution weights whose layout the
  // file does not specify: (8, 3, 3, 3) can be (out, in, height, width) or (out, height, width, in).
  // options.convolution_weights then specifies it.
  IncompatibleKeys load_state_dict(const FileTensors& entries, const LoadStateDictOptions& options = {});

  // Moves parameters, their gradients and buffers. Handles that users hold move along, and an optimizer's state moves
  // at its next step. Call it before the module is wrapped in DistributedDataParallel. Blocks as Tensor::copy_from
  // does.
  void to(Device& device);
  void train(bool on = true);  // also sets the children
  void eval() { train(false); }
  bool is_training() const { return training_; }
  // Calls the function for each descendant, children before parents, and finally for this module.
  void apply(const std::function<void(Module&)>& function);
  // All parameters, including the children's, no longer require a gradient, and their present gradients are cleared;
  // freeze(false) reverses that. Call it before the module is wrapped in DistributedDataParallel and before the
  // optimizer is made, because both check it then.
  void freeze(bool on = true);

  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  // Expires when the module is destroyed; for objects that hold a reference to it.
  std::weak_ptr<const void> lifetime() const { return alive_; }
  // The number of the scope that this thread had open when it built the module; 0: none (src/nn/module/build_scope.h).
  std::uint64_t built_in_scope() const { return built_in_scope_; }
  // The tensors of this module, without its children's.
  const std::vector<NamedTensor>& own_parameters() const { return parameters_; }
  const std::vector<NamedTensor>& own_buffers() const { return buffers_; }

 protected:
  // Names must be unique within the module and contain no dot, and a child must not contain this module;
  // InvalidArgument otherwise.
  void add(const std::string& name, Module& child);
  void remove(const std::string& name);  // a child, before it is destroyed; InvalidArgument if there is none
  Tensor& add_parameter(const std::string& name, Tensor& parameter);  // marks it as requiring a gradient
  Tensor& add_buffer(const std::string& name, Tensor& buffer);
  // For forward_all(): throws InvalidArgument with kind() and both counts.
  void check_inputs(const Tensors& inputs, std::size_t expected) const;

 private:
  void check_name(const std::string& name) const;
  Tensor call_for_one(const Tensors& inputs);

  std::vector<NamedTensor> parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  bool training_ = true;
  const std::uint64_t built_in_scope_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// The tree of modules, as PyTorch prints it: "Sequential(\n  (0): Linear(784, 128)\n  (1): ReLU()\n)".
std::ostream& operator<<(std::ostream& out, const Module& module);

// One input of summary(): zeros of this shape and type.
struct InputSpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

// A table with the name, kind, output shapes and parameters of each module, and totals below. A module whose operator()
// is not called has "-" as its output. Runs one forward pass with zeros on the first parameter's device, in eval mode
// and without recording. Afterwards each module's mode and the thread's random streams are as before.
//   summary(net, {8, 24, 24, 3});  summary(net, {{{8, 5}, DType::kInt64}, {{8, 3}}});
std::string summary(Module& module, std::span<const InputSpec> inputs);
std::string summary(Module& module, std::initializer_list<InputSpec> inputs);
std::string summary(Module& module, const Shape& input_shape);

}  // namespace lockstep::nn
#pragma GCC visibility pop
