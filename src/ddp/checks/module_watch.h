// Detects changes of a wrapped module. A parameter has one wrapper at a time, which declares what it keeps equal on all
// ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class ModuleWatch {
 public:
  // Records the current parameters and buffers of the module.
  ModuleWatch(const nn::Module& module, const std::vector<std::string>& ignored);

  // Returns "", or how the module changed: a parameter or buffer was added, removed, replaced or moved to another
  // device. Does not allocate if nothing changed.
  std::string change(const nn::Module& module) const;
  // Returns "", or that a frozen parameter is no longer frozen, except ignored ones: no wrapper averages its gradients.
  std::string unfrozen() const;

 private:
  std::vector<NamedTensor> tensors_;  // parameters and buffers
  std::vector<const Device*> devices_;
  std::vector<NamedTensor> frozen_;
};

// Returns "", or the parameter whose gradient is no longer in its slot, because .to() to another device and back moved
// it.
std::string moved_gradient(const std::vector<NamedTensor>& parameters, const std::vector<const void*>& slots);

// The tensors that a wrapper keeps equal on all ranks.
struct ReplicatedTensors {
  ProcessGroup* group = nullptr;
  std::vector<NamedTensor> parameters;  // including frozen ones, without the ignored ones
  // Whether they may differ between two averages of weights, and whether ranks in join() have unequal numbers of steps.
  // The same on all ranks.
  std::function<bool()> may_differ, is_joining;
};

// Claims the parameters for one wrapper in this process.
class WrapperClaim {
 public:
  // Returns "" and claims them until it is destroyed, or returns why not: another wrapper has one of them.
  std::string take(const std::vector<NamedTensor>& parameters, const ReplicatedTensors& replicated);
  WrapperClaim() = default;
  ~WrapperClaim();
  WrapperClaim(const WrapperClaim&) = delete;
  WrapperClaim& operator=(const WrapperClaim&) = delete;

 private:
  std::vector<const void*> held_;
};

// Returns those of the wrappers that have parameters of the module, in the wrappers' order.
std::vector<const ReplicatedTensors*> replicated_tensors_of(const nn::Module& module);

}  // namespace lockstep
