#include "lockstep/nn/module.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/nn/forward_observer.h"

namespace lockstep::nn {

namespace {

enum class What { kParameters, kBuffers };

void collect(const Module& module, const std::string& path, What what, std::vector<NamedTensor>& out) {
  for (const NamedTensor& own : what == What::kParameters ? module.own_parameters() : module.own_buffers())
    out.push_back({path + own.name, own.tensor});
  for (const auto& [name, child] : module.children()) collect(*child, path + name + ".", what, out);
}

}  // namespace

thread_local const ForwardObserver* forward_observer = nullptr;

Tensor Module::operator()(const Tensor& x) {
  Tensor y = forward(x);
  if (forward_observer != nullptr) (*forward_observer)(*this, y);
  return y;
}

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

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos) throw InvalidArgument("{}: the name '{}' is empty or holds a dot", kind(), name);
  const auto is_taken = [&](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](const NamedTensor& entry) { return entry.name == name; });
  };
  const bool child = std::any_of(children_.begin(), children_.end(), [&](const auto& entry) { return entry.first == name; });
  if (child || is_taken(parameters_) || is_taken(buffers_)) throw InvalidArgument("{}: the name '{}' is taken", kind(), name);
}

void Module::add(const std::string& name, Module& child) {
  check_name(name);
  children_.emplace_back(name, &child);
}

Tensor& Module::add_parameter(const std::string& name, Tensor& parameter) {
  check_name(name);
  require_grad(parameter);
  set_name(parameter, name);
  parameters_.push_back({name, parameter});
  return parameter;
}

Tensor& Module::add_buffer(const std::string& name, Tensor& buffer) {
  check_name(name);
  buffers_.push_back({name, buffer});
  return buffer;
}

}  // namespace lockstep::nn
