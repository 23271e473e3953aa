// The implementation of AutogradMeta: the state of a leaf, or the link from a result to the node that computed it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/variable.h"

namespace lockstep {

struct HookEntry {
  GradHook hook;
  bool removed = false;
};

class VariableState : public AutogradMeta, public std::enable_shared_from_this<VariableState> {
 public:
  void backward(const Tensor& root, const BackwardOptions& options) override;

  // Fires the hooks of a leaf, the last ones last; hooks may remove themselves or others, and add new ones for the next
  // pass.
  void fire_hooks(const Tensor& leaf);
  bool has_hooks() const { return !hooks.empty() || !last_hooks.empty(); }
  void remove(const std::shared_ptr<HookEntry>& entry);

  std::shared_ptr<Node> node;  // null for leaves
  bool wants_grad = false;     // a leaf that was marked
  std::string name;            // of a leaf; may be empty
  Tensor grad;                 // of a leaf
  bool grad_written = false;
  const char* withheld = nullptr;      // why nobody is given the gradient
  const char* step_refusal = nullptr;  // why no optimizer steps by it
  int pending_uses = 0;                // while a pass runs: nodes that have yet to write this leaf's gradient
  std::vector<std::shared_ptr<HookEntry>> hooks;
  std::vector<std::shared_ptr<HookEntry>> last_hooks;  // of those that give the gradient away

 private:
  void fire(const std::vector<std::shared_ptr<HookEntry>>& all, const Tensor& leaf) const;

  bool firing_ = false;
};

// As register_grad_hook(), and called when all of those have returned: for a wrapper that sends the gradient away.
[[nodiscard]] HookHandle register_last_grad_hook(const Tensor& leaf, GradHook hook);

// The state of a tensor; null when it has none.
VariableState* variable_of(const Tensor& tensor);
// The state of a tensor, made when it has none.
VariableState& ensure_variable(const Tensor& tensor);

}  // namespace lockstep
