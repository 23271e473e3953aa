#include "src/ddp/checks/module_watch.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "src/ddp/wrapper/agreed_options.h"

namespace lockstep {

namespace {

struct Wrapped {
  std::mutex mutex;
  std::unordered_map<const void*, const ReplicatedTensors*>
      parameters;  // by their autograd state, which moves with them
};

Wrapped& wrapped() {
  static Wrapped all;
  return all;
}

// Calls the function for each tensor of the module in the order of named_parameters() until it returns false.
template <typename Function> bool each_tensor(const nn::Module& module,
                                              const std::vector<NamedTensor>& (nn::Module::*own)() const,
                                              const Function& function) {
  for (const auto& [name, tensor] : (module.*own)())
    if (!function(name, tensor)) return false;
  for (const auto& [name, child] : module.children())
    if (!each_tensor(*child, own, function)) return false;
  return true;
}

}  // namespace

ModuleWatch::ModuleWatch(const nn::Module& module, const std::vector<std::string>& ignored) {
  for (const NamedTensor& parameter : without(module, module.named_parameters(), ignored))
    if (parameter.tensor.defined() && !requires_grad(parameter.tensor)) frozen_.push_back(parameter);
  for (const auto& list : {module.named_parameters(), module.named_buffers()})
    for (const NamedTensor& entry : list) {
      tensors_.push_back(entry);
      devices_.push_back(entry.tensor.defined() ? &entry.tensor.device() : nullptr);
    }
}

std::string ModuleWatch::change(const nn::Module& module) const {
  std::size_t next = 0;
  std::string difference;
  const auto compare = [&](const std::string& name, const Tensor& tensor) {
    const Device* device = tensor.defined() ? &tensor.device() : nullptr;
    if (next == tensors_.size())
      difference = fmt::format("'{}' was added", name);
    else if (!tensor.is_same(tensors_[next].tensor))
      difference = fmt::format("'{}' replaces '{}'", name, tensors_[next].name);
    else if (device != devices_[next] && device != nullptr && devices_[next] != nullptr)
      difference =
          fmt::format("'{}' is on {}, but was on {}", tensors_[next].name, device->name(), devices_[next]->name());
    ++next;
    return difference.empty();
  };
  for (const auto& list : {&nn::Module::own_parameters, &nn::Module::own_buffers})
    if (!each_tensor(module, list, compare)) return difference;
  return next < tensors_.size() ? fmt::format("'{}' was removed", tensors_[next].name) : "";
}

std::string ModuleWatch::unfrozen() const {
  for (const auto& [name, tensor] : frozen_) {
    if (!requires_grad(tensor)) continue;
    const std::lock_guard lock(wrapped().mutex);
    if (wrapped().parameters.count(tensor.autograd_meta()) == 0)
      return fmt::format("'{}' is no longer frozen, so each rank would train it with its own samples only", name);
  }
  return "";
}

std::string moved_gradient(const std::vector<NamedTensor>& parameters, const std::vector<const void*>& slots) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    if (requires_grad(tensor) && grad_buffer(tensor).data() != slots[i])
      return fmt::format("'{}' was moved, so its gradient is no longer in its bucket", name);
  }
  return "";
}

std::string WrapperClaim::take(const std::vector<NamedTensor>& parameters, const ReplicatedTensors& replicated) {
  const std::lock_guard lock(wrapped().mutex);
  for (const auto& [name, tensor] : parameters)
    if (wrapped().parameters.count(tensor.autograd_meta()) != 0)
      return fmt::format(
          "parameter '{}' belongs to another DistributedDataParallel that still exists: destroy that one first, use "
          "only "
          "one of them, or list the parameter in ignored_parameters",
          name);
  for (const auto& [name, tensor] : parameters) {
    wrapped().parameters.emplace(tensor.autograd_meta(), &replicated);
    held_.push_back(tensor.autograd_meta());
  }
  return "";
}

WrapperClaim::~WrapperClaim() {
  const std::lock_guard lock(wrapped().mutex);
  for (const void* parameter : held_) wrapped().parameters.erase(parameter);
}

std::vector<const ReplicatedTensors*> replicated_tensors_of(const nn::Module& module) {
  std::vector<const ReplicatedTensors*> found;
  const std::lock_guard lock(wrapped().mutex);
  for (const auto& [name, tensor] : module.named_parameters()) {
    const auto wrapper = wrapped().parameters.find(tensor.autograd_meta());
    if (wrapper != wrapped().parameters.end() && std::find(found.begin(), found.end(), wrapper->second) == found.end())
      found.push_back(wrapper->second);
  }
  return found;
}

}  // namespace lockstep
