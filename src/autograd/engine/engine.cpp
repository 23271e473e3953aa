#include "lockstep/autograd/engine.h"

#include <functional>
#include <utility>
#include <vector>

#include "src/autograd/engine/capture_pass.h"
#include "src/autograd/engine/variable_state.h"

namespace lockstep {

namespace {

// backward(): writes gradients of leaves to their grad(), and calls hooks.
class LeafPass final : public BackwardPass {
 public:
  ~LeafPass() override {
    for (const auto& [leaf, reader] : leaves_) variable_of(leaf)->pending_uses = 0;
  }

  std::vector<LeafUse> leaves() const override {
    std::vector<LeafUse> uses;
    for (const auto& [leaf, reader] : leaves_) uses.push_back({leaf, reader, variable_of(leaf)->has_hooks()});
    return uses;
  }

 protected:
  void note_end(const Tensor& leaf, VariableState& state, const char* reader) override {
    if (state.pending_uses++ == 0) leaves_.emplace_back(leaf, reader);
  }

  GradTarget end_target(const Tensor& leaf, VariableState& state) override {
    if (state.grad.defined()) {
      if (&state.grad.device() != &leaf.device())
        throw InvalidArgument(
            "backward: the gradient of a parameter of shape {} is on {}, but the parameter is on {}: move modules with "
            "Module::to, before they "
            "are wrapped in DistributedDataParallel",
            leaf.shape().text(), state.grad.device().name(), leaf.device().name());
      state.grad.mark_changed();
    }
    const bool first = !std::exchange(state.grad_written, true);
    return {&state.grad, leaf, first, false};
  }

  void end_written(const Tensor& leaf, VariableState& state) override {
    if (--state.pending_uses == 0) state.fire_hooks(leaf);
  }

  // Nodes that run later write the first part of its gradient.
  void end_skipped(const Tensor& leaf, VariableState& state, const GradTarget& target) override {
    if (!target.accumulate()) state.grad_written = false;
    if (--state.pending_uses == 0 && state.grad_written) state.fire_hooks(leaf);
  }

  void note_end_callbacks(const std::vector<std::function<void()>>& callbacks) override {
    through_.insert(through_.end(), callbacks.begin(), callbacks.end());
  }

  // First the end hooks of results that the pass went through, then the callbacks that were queued during it.
  void call_end_callbacks() override {
    call_all(through_);
    BackwardPass::call_end_callbacks();
  }

 private:
  std::vector<std::pair<Tensor, const char*>> leaves_;  // with the operator through which each was found
  std::vector<std::function<void()>> through_;
};

void check_outside_of_a_pass(const char* function) {
  if (BackwardPass::outermost() != nullptr)
    throw InvalidArgument("{}: called from within a backward pass of this thread", function);
}

// A root with a copy of its gradient, because nodes overwrite it.
BackwardPass::Root root_of(const char* function, const Tensor& root, const Tensor& gradient) {
  if (!root.defined()) throw InvalidArgument("{}: the tensor to differentiate is undefined", function);
  if (!gradient.defined() && (root.dtype() != DType::kFloat32 || root.count() != 1))
    throw InvalidArgument("{}: needs a float32 scalar, got {} of shape {}: reduce it to a loss, or pass its gradient",
                          function, name_of(root.dtype()), root.shape().text());
  if (gradient.defined() &&
      (gradient.shape() != root.shape() || gradient.dtype() != root.dtype() || &gradient.device() != &root.device()))
    throw InvalidArgument(
        "{}: the gradient must match the tensor to differentiate: expected {} of shape {} on {}, got {} of shape {} on "
        "{}",
        function, name_of(root.dtype()), root.shape().text(), root.device().name(), name_of(gradient.dtype()),
        gradient.shape().text(), gradient.device().name());
  if (!requires_grad(root))
    throw InvalidArgument("{}: nothing that this tensor depends on requires a gradient (was it computed under NoGrad?)",
                          function);
  return {root, gradient.defined() ? gradient.clone() : Tensor::full(root.shape(), 1, root.device())};
}

void check_captured(const Tensor& input, std::size_t index) {
  if (!input.defined()) throw InvalidArgument("gradients: inputs[{}] is undefined", index);
  if (!requires_grad(input))
    throw InvalidArgument("gradients: inputs[{}], {}, requires no gradient: call require_grad() before it is used",
                          index, describe(input));
}

}  // namespace

void backward(const Tensor& root, const BackwardOptions& options) {
  check_outside_of_a_pass("backward");
  LeafPass pass;
  pass.collect({root_of("backward", root, options.gradient)});
  pass.run(options.retain_graph);
}

std::vector<Tensor> gradients(const std::vector<Tensor>& roots, const std::vector<Tensor>& inputs,
                              const GradientsOptions& options) {
  check_outside_of_a_pass("gradients");
  if (roots.empty()) throw InvalidArgument("gradients: got no tensor to differentiate");
  if (!options.gradients.empty() && options.gradients.size() != roots.size())
    throw InvalidArgument(
        "gradients: got {} tensors to differentiate and {} gradients: pass one gradient for each, or none",
        roots.size(), options.gradients.size());
  std::vector<BackwardPass::Root> ready;
  for (std::size_t i = 0; i < roots.size(); ++i)
    ready.push_back(root_of("gradients", roots[i], options.gradients.empty() ? Tensor() : options.gradients[i]));

  std::vector<Tensor> results(inputs.size());
  std::vector<std::size_t> index_of(inputs.size());  // an input that is given twice has one gradient
  CapturePass pass;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_captured(inputs[i], i);
    while (!inputs[index_of[i]].is_same(inputs[i])) ++index_of[i];
    pass.capture(i, inputs[i], index_of[i] == i ? GradTarget(&results[i], inputs[i], true, true) : GradTarget());
  }
  pass.collect(std::move(ready));
  pass.prune();
  for (std::size_t i = 0; i < inputs.size() && !options.allow_unused; ++i)
    if (!pass.reached(index_of[i]))
      throw InvalidArgument(
          "gradients: none of the differentiated tensors depends on inputs[{}], {}: leave it out, or get an undefined "
          "tensor for it with "
          ".allow_unused = true",
          i, describe(inputs[i]));
  pass.run(options.retain_graph);
  for (std::size_t i = 0; i < inputs.size(); ++i) results[i] = results[index_of[i]];
  return results;
}

std::vector<Tensor> gradients(const Tensor& root, const std::vector<Tensor>& inputs, const GradientsOptions& options) {
  return gradients(std::vector{root}, inputs, options);
}

std::uint64_t backward_pass() { return BackwardPass::outermost() == nullptr ? 0 : BackwardPass::outermost()->number(); }

std::vector<LeafUse> leaves_of_backward() {
  return BackwardPass::outermost() == nullptr ? std::vector<LeafUse>() : BackwardPass::outermost()->leaves();
}

void queue_callback(std::function<void()> callback) {
  if (BackwardPass::outermost() == nullptr)
    throw InvalidArgument("queue_callback: no backward pass is running on this thread");
  BackwardPass::outermost()->queue(std::move(callback));
}

HookHandle register_result_grad_hook(const Tensor& result, ResultGradHook hook) {
  const auto node = result.defined() ? node_of(result) : nullptr;
  if (!node || node->released())
    throw InvalidArgument(
        "register_result_grad_hook: the tensor is not a recorded result: for a leaf use register_grad_hook()");
  if (!hook) throw InvalidArgument("register_result_grad_hook: the hook is empty");
  const auto entry = std::make_shared<ResultGradHook>(std::move(hook));
  node->result_hooks_.push_back(entry);
  return HookHandle([weak = std::weak_ptr(entry)] {
    if (const auto alive = weak.lock()) *alive = nullptr;
  });
}

void register_backward_end_hook(const Tensor& result, std::function<void()> callback) {
  if (const auto node = node_of(result)) node->end_callbacks_.push_back(std::move(callback));
}

}  // namespace lockstep
