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

  // Calls the hooks of a leaf, the `last_hooks` after all others. Hooks may remove themselves or others, and add new
  // ones for the next pass.
  void fire_hooks(const Tensor& leaf);
  bool has_hooks() const { return !hooks.empty() || !last_hooks.empty(); }
  void remove(const std::shared_ptr<HookEntry>& entry);

  std::shared_ptr<Node> node;  // null for leaves
  bool wants_grad = false;     // a marked leaf
  bool is_registered = false;  // a module's parameter or buffer: the module keeps a handle of its own
  std::string name;            // of a leaf; may be empty
  Tensor grad;                 // of a leaf
  bool grad_written = false;
  const char* withheld = nullptr;      // reason why grad() throws
  const char* step_refusal = nullptr;  // reason why optimizers reject the gradient
  int pending_uses = 0;  // during a pass: number of nodes that have not written their part of this leaf's gradient yet
  std::vector<std::shared_ptr<HookEntry>> hooks;
  std::vector<std::shared_ptr<HookEntry>> last_hooks;  // hooks of wrappers that send the gradient

 private:
  void fire(const std::vector<std::shared_ptr<HookEntry>>& all, const Tensor& leaf) const;

  bool firing_ = false;
};

// Like register_grad_hook(), but called after all of those hooks: for a wrapper that sends the gradient.
[[nodiscard]] HookHandle register_last_grad_hook(const Tensor& leaf, GradHook hook);

// The state of a tensor; null if it has none.
VariableState* variable_of(const Tensor& tensor);
// A module has registered the tensor, so that operators such as += may not give the program's handle other memory.
void mark_registered(const Tensor& tensor);

// The state of a tensor; created if it has none.
VariableState& ensure_variable(const Tensor& tensor);

}  // namespace lockstep
