#include "src/ddp/checks/mistakes.h"

#include <algorithm>
#include <string>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/log.h"

namespace lockstep {

void warn_of_unregistered_leaves(int rank, const std::vector<NamedTensor>& parameters,
                                 const std::deque<Tensor>& inputs) {
  if (rank != 0) return;
  std::string unregistered;
  for (const auto& [found, reader, has_hooks] : leaves_of_backward()) {
    const Tensor& leaf = found;  // in Clang 14 a lambda cannot capture a structured binding
    const bool is_ours = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const NamedTensor& own) { return own.tensor.is_same(leaf); });
    const bool is_input =
        std::any_of(inputs.begin(), inputs.end(), [&](const Tensor& input) { return input.is_same(leaf); });
    if (is_ours || is_input || has_hooks) continue;
    unregistered += fmt::format("{}{} (read by {})", unregistered.empty() ? "" : ", ", describe(leaf), reader);
  }
  if (unregistered.empty()) return;
  log::warn(
      "rank {}: backward computed gradients of tensors that are not parameters of the module in "
      "DistributedDataParallel; they are not averaged: {}. If these are parameters of the module, add() the layer or "
      "add_parameter() the tensor, and unfreeze them, before it is wrapped",
      rank, unregistered);
}

bool warn_of_frozen(int rank, const std::vector<NamedTensor>& parameters) {
  if (rank != 0) return false;
  std::string frozen;
  for (const auto& [name, tensor] : parameters)
    if (!requires_grad(tensor)) frozen += (frozen.empty() ? "'" : ", '") + name + "'";
  if (frozen.empty()) return false;
  log::warn(
      "rank {}: frozen after the module was wrapped in DistributedDataParallel: {}. Their gradients are still sent, as "
      "zeros, and an optimizer that has them refuses to step: freeze them first, then wrap the module",
      rank, frozen);
  return true;
}

}  // namespace lockstep
