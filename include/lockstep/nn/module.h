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

// Neither copied nor moved: children are members of the derived class and are known by address.
class Module {
 public:
  Module();
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // A module overrides one of these. forward(): one input, one output. forward_all(): any number of each; it begins
  // with check_inputs(). By default each calls the other. They throw InvalidArgument, with kind() and both numbers,
  // when the inputs are not one but forward() is overridden, when forward_all()'s outputs are not one but forward() was
  // called, and when neither is overridden.
  virtual Tensor forward(const Tensor& x);
  virtual Tensors forward_all(const Tensors& inputs);

  // A forward, seen by summary(): net(x), net(a, b) for the one output of a module; net(Tensors{a, b}) for all its
  // outputs.
  Tensor operator()(const Tensor& x);
  Tensors operator()(const Tensors& inputs);
  template <typename... More>
  requires(std::convertible_to<const More&, Tensor>&&...) Tensor operator()(const Tensor& first, const Tensor& second,
                                                                            const More&... more) {
    return call_for_one({first, second, more...});
  }

  // For summary() and operator<<: "Conv2d", and what is in its parentheses: "3, 64, kernel=(5, 5)".
  virtual std::string kind() const { return "Module"; }
  virtual std::string extra_repr() const { return ""; }

  // Depth first, in order of registration: the same on all ranks that build the same module.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers()
      const;  // state that is no parameter (statistics): saved, broadcast, not trained
  std::vector<Tensor> parameters() const;

  // The parameters, then the buffers, but undefined ones: handles of the module's own memory, no copies.
  std::vector<NamedTensor> state_dict() const;
  // Copies values into parameters and buffers, in place, across devices. Blocks as Tensor::copy_from does. Throws
  // InvalidArgument, and has changed nothing, that lists every difference, and the count of each kind: names that are
  // missing or unexpected (unless .strict is false: then they are returned), and, always, names that came twice,
  // undefined tensors, other shapes and types. Floating types are converted, each value rounded to the nearest. Of
  // names that share their memory (tied weights) one is enough. Of a module in DistributedDataParallel, every rank must
  // load the same.
  IncompatibleKeys load_state_dict(const std::vector<NamedTensor>& entries, const LoadStateDictOptions& options = {});
  // The same of a file (load_safetensors()), which may be PyTorch's: also refuses convolutions' weights whose layout it
  // does not say, as (8, 3, 3, 3) may be (out, in, height, width) or (out, height, width, in).
  // options.convolution_weights says it then.
  IncompatibleKeys load_state_dict(const FileTensors& entries, const LoadStateDictOptions& options = {});

  // Moves parameters, their gradients and buffers; handles that users hold move along, and so does an optimizer's state
  // at its next step. Before the module is wrapped in DistributedDataParallel, not after. Blocks as Tensor::copy_from
  // does.
  void to(Device& device);
  void train(bool on = true);  // children too
  void eval() { train(false); }
  bool is_training() const { return training_; }
  // Calls the function for each module below, children first, and last for this one.
  void apply(const std::function<void(Module&)>& function);
  // All parameters, children's too, require no gradient any more, and their present one is cleared; freeze(false) is
  // the way back. Before the module is wrapped in DistributedDataParallel and the optimizer is made, both of which look
  // at it then.
  void freeze(bool on = true);

  const std::vector<std::pair<std::string, Module*>>& children() const { return children_; }
  // Expires when the module goes: for those who hold a reference to it.
  std::weak_ptr<const void> lifetime() const { return alive_; }
  // The number of the strategy's scope (train/strategy_scope.h) in which it was built; 0: in none.
  std::uint64_t built_in_scope() const { return built_in_scope_; }
  // The module's own tensors, children's left out.
  const std::vector<NamedTensor>& own_parameters() const { return parameters_; }
  const std::vector<NamedTensor>& own_buffers() const { return buffers_; }

 protected:
  // Names are unique within the module and hold no dot, and no child holds the module itself; InvalidArgument
  // otherwise.
  void add(const std::string& name, Module& child);
  Tensor& add_parameter(const std::string& name, Tensor& parameter);  // marks it as requiring a gradient
  Tensor& add_buffer(const std::string& name, Tensor& buffer);
  // For forward_all(): throws InvalidArgument with kind() and both numbers.
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

// A table for people: name, kind, output shapes, parameters; the totals below. A module whose operator() is not called
// has "-" for its output. Runs one forward pass of zeros on the first parameter's device, in eval mode and without
// recording, and changes nothing: each module is in training mode again if it was, and the thread's random streams
// stand where they stood.
//   summary(net, {8, 24, 24, 3});  summary(net, {{{8, 5}, DType::kInt64}, {{8, 3}}});
std::string summary(Module& module, std::span<const InputSpec> inputs);
std::string summary(Module& module, std::initializer_list<InputSpec> inputs);
std::string summary(Module& module, const Shape& input_shape);

}  // namespace lockstep::nn
#pragma GCC visibility pop
