#include "lockstep/nn/module.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "src/autograd/engine/variable_state.h"
#include "src/nn/module/build_scope.h"
#include "src/nn/module/forward_observer.h"
#include "src/nn/module/only_output.h"

namespace lockstep::nn {

namespace {

enum class What { kParameters, kBuffers };

void collect(const Module& module, const std::string& path, What what, std::vector<NamedTensor>& out) {
  for (const NamedTensor& own : what == What::kParameters ? module.own_parameters() : module.own_buffers())
    out.push_back({path + own.name, own.tensor});
  for (const auto& [name, child] : module.children()) collect(*child, path + name + ".", what, out);
}

bool holds(const Module& module, const Module& wanted) {
  const auto& below = module.children();
  return &module == &wanted ||
         std::any_of(below.begin(), below.end(), [&](const auto& child) { return holds(*child.second, wanted); });
}

// The module whose default forward_all() has called forward(); its default forward() must not call back.
thread_local const Module* in_default = nullptr;

class InDefault {
 public:
  explicit InDefault(const Module* module) : before_(std::exchange(in_default, module)) {}
  ~InDefault() { in_default = before_; }
  InDefault(const InDefault&) = delete;
  InDefault& operator=(const InDefault&) = delete;

 private:
  const Module* before_;
};

void announce(const Module& module) {
  if (forward_announcer != nullptr) (*forward_announcer)(module);
}
void observe(const Module& module, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  if (forward_observer != nullptr) (*forward_observer)(module, inputs, outputs);
}

}  // namespace

thread_local const ForwardObserver* forward_observer = nullptr;
thread_local const std::function<void(const Module& module)>* forward_announcer = nullptr;

Tensor only_output(const Module& module, Tensors outputs) {
  if (outputs.size() != 1)
    throw InvalidArgument(
        "{}: it has {} outputs, expected 1: to get all of them, call it with Tensors{{...}}, or call forward_all()",
        module.kind(), outputs.size());
  return std::move(outputs[0]);
}

thread_local std::uint64_t build_scope = 0;

Module::Module() : built_in_scope_(build_scope) {}

Tensor Module::forward(const Tensor& x) {
  if (in_default == this)
    throw InvalidArgument("{}: it overrides neither forward(x) nor forward_all(inputs): override one of them", kind());
  return only_output(*this, forward_all({x}));
}

Tensors Module::forward_all(const Tensors& inputs) {
  if (inputs.size() != 1)
    throw InvalidArgument(
        "{}: got {} inputs, expected 1, because forward(x) takes one: a module with several overrides "
        "forward_all(inputs)",
        kind(), inputs.size());
  const InDefault in_default_forward(this);
  return {forward(inputs[0])};
}

void Module::check_inputs(const Tensors& inputs, std::size_t expected) const {
  if (inputs.size() != expected)
    throw InvalidArgument("{}: got {} inputs, expected {}", kind(), inputs.size(), expected);
}

Tensor Module::operator()(const Tensor& x) {
  announce(*this);
  const Tensor y = forward(x);
  observe(*this, {&x, 1}, {&y, 1});
  return y;
}

Tensors Module::operator()(const Tensors& inputs) {
  announce(*this);
  Tensors outputs = forward_all(inputs);
  observe(*this, inputs, outputs);
  return outputs;
}

Tensor Module::call_for_one(const Tensors& inputs) { return only_output(*this, (*this)(inputs)); }

std::vector<NamedTensor> Module::named_parameters() const {
  std::vector<NamedTensor> all;
  collect(*this, "", What::kParameters, all);
  return all;
}

std::vector<NamedTensor> Module::named_buffers() const {
  std::vector<NamedTensor> all;
  collect(*this, "", What::kBuffers, all);
  return all;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> all;
  for (const NamedTensor& parameter : named_parameters()) all.push_back(parameter.tensor);
  return all;
}

void Module::to(Device& device) {
  const auto move = [&](const Tensor& tensor) {
    if (tensor.defined() && &tensor.device() != &device) tensor.rebind(tensor.to(device).buffer());
  };
  for (const NamedTensor& parameter : named_parameters()) {
    move(parameter.tensor);
    if (requires_grad(parameter.tensor)) move(grad(parameter.tensor));
  }
  for (const NamedTensor& buffer : named_buffers()) move(buffer.tensor);
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& [name, child] : children_) child->train(on);
}

void Module::apply(const std::function<void(Module&)>& function) {
  if (!function) throw InvalidArgument("{}::apply: the function is empty", kind());
  for (const auto& [name, child] : children_) child->apply(function);
  function(*this);
}

// A frozen parameter's old gradient would be added to when it is trained again.
void Module::freeze(bool on) {
  for (const NamedTensor& parameter : named_parameters()) {
    if (on && requires_grad(parameter.tensor)) clear_grad(parameter.tensor);
    require_grad(parameter.tensor, !on);
  }
}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    throw InvalidArgument("{}: the name '{}' is empty or contains a dot", kind(), name);
  const auto is_taken = [&](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](const NamedTensor& entry) { return entry.name == name; });
  };
  const bool child =
      std::any_of(children_.begin(), children_.end(), [&](const auto& entry) { return entry.first == name; });
  if (child || is_taken(parameters_) || is_taken(buffers_))
    throw InvalidArgument("{}: the name '{}' is used already", kind(), name);
}

void Module::add(const std::string& name, Module& child) {
  check_name(name);
  if (holds(child, *this)) throw InvalidArgument("{}: the child '{}' is, or contains, the module itself", kind(), name);
  children_.emplace_back(name, &child);
  for (const NamedTensor& parameter : child.named_parameters()) set_name(parameter.tensor, name + "." + parameter.name);
}

void Module::remove(const std::string& name) {
  if (std::erase_if(children_, [&](const auto& child) { return child.first == name; }) == 0)
    throw InvalidArgument("{}::remove: there is no child '{}'", kind(), name);
}

Tensor& Module::add_parameter(const std::string& name, Tensor& parameter) {
  check_name(name);
  if (!parameter.defined())
    throw InvalidArgument("{}::add_parameter: '{}' is an undefined tensor: initialise it first", kind(), name);
  require_grad(parameter);
  mark_registered(parameter);
  set_name(parameter, name);
  parameters_.push_back({name, parameter});
  return parameter;
}

Tensor& Module::add_buffer(const std::string& name, Tensor& buffer) {
  check_name(name);
  if (buffer.defined()) mark_registered(buffer);
  buffers_.push_back({name, buffer});
  return buffer;
}

}  // namespace lockstep::nn
