#include "src/ddp/checks/pass_partner.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "src/optim/step_parts.h"

namespace lockstep {

namespace {

const NamedTensor* find_in(const std::vector<NamedTensor>& list, const Tensor& tensor) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const NamedTensor& entry) { return entry.tensor.is_same(tensor); });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

Buffer memory_on(Device& device, const Buffer& memory) {
  if (memory.device() == &device || device.kind() != DeviceKind::kCpu || memory.device()->kind() != DeviceKind::kCpu)
    return memory;
  return Buffer(memory.data(), memory.bytes(), &device, [memory] {});
}

std::string refusal_of_pair(const DistributedDataParallel& ddp, optim::Optimizer& optimizer, bool takes_some) {
  if (PassAccess::partner(ddp) != nullptr)
    return "another ZeroRedundancyOptimizer or StepInBackward is active on the wrapper: a wrapper can have one at a "
           "time";
  if (const optim::StepOwner* owner = optim::StepParts(optimizer).owner(); owner != nullptr)
    return fmt::format("{} already belongs to a {}", optimizer.kind(), owner->name());
  if (optimizer.slice_holders() > 1)
    return fmt::format(
        "{} has only slices of its state, of a ZeroRedundancyOptimizer that was destroyed: make a new one",
        optimizer.kind());
  if (ddp.is_joining() || !ddp.synchronizes())
    return "it is made inside join() or no_sync(): make it before the training";
  if (ddp.reducer().in_pass()) return "it is made during backward: make it before the training";
  const std::vector<NamedTensor> wrapped = ddp.parameters();
  for (const auto& [name, tensor] : wrapped)
    if (!takes_some && find_in(optimizer.parameters(), tensor) == nullptr)
      return fmt::format("parameter '{}' is not in the optimizer {}: give it all of ddp.parameters()", name,
                         optimizer.kind());
  for (const auto& [name, tensor] : optimizer.parameters())
    if (find_in(wrapped, tensor) == nullptr)
      return fmt::format("the wrapper does not average the optimizer's parameter '{}': give it ddp.parameters()", name);
  return "";
}

std::vector<std::size_t> indices_in(const optim::Optimizer& optimizer, const DistributedDataParallel& ddp) {
  std::vector<std::size_t> indices;
  for (const NamedTensor& parameter : ddp.parameters()) {
    const NamedTensor* found = find_in(optimizer.parameters(), parameter.tensor);
    indices.push_back(found == nullptr ? kNotInOptimizer
                                       : static_cast<std::size_t>(found - optimizer.parameters().data()));
  }
  return indices;
}

}  // namespace lockstep
