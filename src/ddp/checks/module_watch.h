// A wrapped module must stay as it was wrapped, and a parameter has one wrapper at a time, which says what it keeps
// equal on all ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class ModuleWatch {
 public:
  // The parameters and buffers of the module as they are now.
  ModuleWatch(const nn::Module& module, const std::vector<std::string>& ignored);

  // "", or how the module differs from what it was: a parameter or buffer more, less, another one, or on another
  // device. Allocates nothing when all is well.
  std::string change(const nn::Module& module) const;
  // "", or how a parameter that was frozen is no longer, the ignored ones aside: no wrapper averages its gradients.
  std::string unfrozen() const;

 private:
  std::vector<NamedTensor> tensors_;  // parameters, buffers
  std::vector<const Device*> devices_;
  std::vector<NamedTensor> frozen_;
};

// "", or the parameter whose gradient no longer lies in its slot: .to() there and back gives it other memory.
std::string moved_gradient(const std::vector<NamedTensor>& parameters, const std::vector<const void*>& slots);

// What a wrapper keeps equal on all ranks.
struct ReplicatedTensors {
  ProcessGroup* group = nullptr;
  std::vector<NamedTensor> parameters;  // frozen ones, too; not the ignored ones
  // On all ranks alike: they differ between two averages of weights; ranks in join() have unequal numbers of steps.
  std::function<bool()> may_differ, is_joining;
};

// Holds the parameters for one wrapper, in this process.
class WrapperClaim {
 public:
  // "", and they are held until the claim goes; or why they cannot be: one of them is held already.
  std::string take(const std::vector<NamedTensor>& parameters, const ReplicatedTensors& replicated);
  WrapperClaim() = default;
  ~WrapperClaim();
  WrapperClaim(const WrapperClaim&) = delete;
  WrapperClaim& operator=(const WrapperClaim&) = delete;

 private:
  std::vector<const void*> held_;
};

// Of the wrappers that hold parameters of the module, in their order.
std::vector<const ReplicatedTensors*> replicated_tensors_of(const nn::Module& module);

}  // namespace lockstep
