// The tensors of DataParallel's copies, and when they take over the module's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep::train {

// The tensors of a copy, and what they hold of the module's. A copy is written only if the module's tensor, which
// copy 0 changes as well, or its own has changed since: forwards without a step between them can then share the
// copies' weights until their backward.
struct CopiedTensors {
  struct Versions {
    const void* memory = nullptr;  // of the module's tensor
    std::uint64_t of_module = 0, of_first_copy = 0, of_copy = 0;
    bool operator==(const Versions&) const = default;
  };
  explicit CopiedTensors(std::vector<NamedTensor> all) : tensors(std::move(all)), versions(tensors.size()) {}

  std::vector<NamedTensor> tensors;
  std::vector<Versions> versions;
};
struct CopiedState {
  CopiedState(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers)
      : parameters(std::move(parameters)), buffers(std::move(buffers)) {}
  CopiedTensors parameters, buffers;
};

// Throws InvalidArgument if the tensor is not on the first device of DataParallel.
void check_is_on(const Device& first_device, const NamedTensor& each);

// Gives a copy the values of the module's tensors, which are on the first device. `first` is the copy that shares the
// module's memory; `to` may be the same. Throws InvalidArgument if their numbers differ, or one is on another device.
void take_values(const Device& first_device, const std::vector<NamedTensor>& from, const CopiedTensors& first,
                 CopiedTensors& to);

}  // namespace lockstep::train
