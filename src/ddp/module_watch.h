// A wrapped module must stay as it was wrapped, and a parameter has one wrapper at a time.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep {

class ModuleWatch {
 public:
  // The parameters and buffers of the module as they are now.
  explicit ModuleWatch(const nn::Module& module);

  // "", or how the module differs from what it was: a parameter or buffer more, less, another one, or on another device. Allocates nothing
  // when all is well.
  std::string change(const nn::Module& module) const;

 private:
  std::vector<NamedTensor> tensors_;  // parameters, buffers
  std::vector<const Device*> devices_;
};

// Holds the parameters for one wrapper, in this process.
class WrapperClaim {
 public:
  // "", and they are held until the claim goes; or why they cannot be: one of them is held already.
  std::string take(const std::vector<NamedTensor>& parameters);
  WrapperClaim() = default;
  ~WrapperClaim();
  WrapperClaim(const WrapperClaim&) = delete;
  WrapperClaim& operator=(const WrapperClaim&) = delete;

 private:
  std::vector<const void*> held_;
};

}  // namespace lockstep
