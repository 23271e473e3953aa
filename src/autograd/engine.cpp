#include "lockstep/autograd/engine.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/autograd/variable_state.h"

namespace lockstep {

// One backward pass: the nodes below a root, newest first, and the callbacks for when all have run.
class BackwardPass {
 public:
  void prepare(const Tensor& root) {
    collect(node_of(root));
    Node& first = *nodes_.front();
    first.result_grad_ = Tensor::full(root.shape(), 1, root.device());
    first.result_grad_written_ = true;
  }

  // However the pass ends, leaves and nodes forget it.
  ~BackwardPass() {
    for (const auto& [leaf, reader] : leaves_) variable_of(leaf)->pending_uses = 0;
    for (const auto& node : nodes_) {
      node->result_grad_ = Tensor();
      node->result_grad_written_ = false;
      node->release();
    }
  }

  void run() {
    for (const auto& node : nodes_) run_node(*node);
  }

  // The hooks of results that the pass went through first, then the callbacks that were queued during it.
  void call_end_callbacks() {
    for (auto* list : {&through_, &queued_})
      for (std::size_t i = 0; i < list->size(); ++i) {
        const std::function<void()> callback = std::move((*list)[i]);  // a callback may queue another
        callback();
      }
  }

  std::vector<LeafUse> leaves() const {
    std::vector<LeafUse> uses;
    for (const auto& [leaf, reader] : leaves_) uses.push_back({leaf, reader, !variable_of(leaf)->hooks.empty()});
    return uses;
  }

  void queue(std::function<void()> callback) { queued_.push_back(std::move(callback)); }

  static thread_local BackwardPass* current;

 private:
  // Finds every node below `root` and counts how often each leaf is used. Recording order is a topological order.
  void collect(const std::shared_ptr<Node>& root) {
    std::unordered_set<const Node*> seen{root.get()};
    nodes_.push_back(root);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const std::shared_ptr<Node> node = nodes_[i];
      if (node->released())
        throw InvalidArgument("backward: the tape behind '{}' was freed by an earlier backward; compute the loss again", node->name());
      for (const Tensor& input : node->inputs()) {
        VariableState* state = input.defined() ? variable_of(input) : nullptr;
        if (state == nullptr) continue;
        if (state->node && seen.insert(state->node.get()).second) nodes_.push_back(state->node);
        if (state->wants_grad && state->pending_uses++ == 0) leaves_.emplace_back(input, node->name());
      }
    }
    std::sort(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
  }

  GradTarget target_of(const Tensor& input) {
    VariableState* state = input.defined() ? variable_of(input) : nullptr;
    if (state == nullptr) return {};
    if (state->node) {
      Node& producer = *state->node;
      const bool first = !std::exchange(producer.result_grad_written_, true);
      return {&producer.result_grad_, input, first, true};
    }
    if (!state->wants_grad) return {};
    if (state->grad.defined() && &state->grad.device() != &input.device())
      throw InvalidArgument(
          "backward: the gradient of a parameter of shape {} is on {}, the parameter on {}: move modules with Module::to, before they are "
          "wrapped in DistributedDataParallel",
          input.shape().text(), state->grad.device().name(), input.device().name());
    const bool first = !std::exchange(state->grad_written, true);
    return {&state->grad, input, first, false};
  }

  void run_node(Node& node) {
    targets_.clear();
    for (const Tensor& input : node.inputs()) targets_.push_back(target_of(input));
    node.backward(std::exchange(node.result_grad_, Tensor()), targets_);
    for (std::function<void()>& callback : node.end_callbacks_) through_.push_back(std::move(callback));
    for (const Tensor& input : node.inputs()) {
      VariableState* state = input.defined() ? variable_of(input) : nullptr;
      if (state != nullptr && state->wants_grad && --state->pending_uses == 0) state->fire_hooks(input);
    }
    node.release();
  }

  std::vector<std::shared_ptr<Node>> nodes_;
  std::vector<std::pair<Tensor, const char*>> leaves_;  // with the operator through which they were found
  std::vector<GradTarget> targets_;
  std::vector<std::function<void()>> through_, queued_;
};

thread_local BackwardPass* BackwardPass::current = nullptr;
thread_local std::uint64_t passes = 0;  // begun on this thread

void backward(const Tensor& root) {
  if (BackwardPass::current != nullptr) throw InvalidArgument("backward: called from within a backward pass of this thread");
  if (root.dtype() != DType::kFloat32 || root.count() != 1)
    throw InvalidArgument("backward: needs a float32 scalar, got {} of shape {}", name_of(root.dtype()), root.shape().text());
  if (!node_of(root)) throw InvalidArgument("backward: nothing below this tensor wants a gradient (was it computed under NoGrad?)");
  BackwardPass pass;
  pass.prepare(root);
  ++passes;
  struct Current {
    explicit Current(BackwardPass* pass) { BackwardPass::current = pass; }
    ~Current() { BackwardPass::current = nullptr; }
  } const current(&pass);
  pass.run();
  pass.call_end_callbacks();
}

std::uint64_t backward_pass() { return BackwardPass::current == nullptr ? 0 : passes; }

std::vector<LeafUse> leaves_of_backward() {
  return BackwardPass::current == nullptr ? std::vector<LeafUse>() : BackwardPass::current->leaves();
}

void queue_callback(std::function<void()> callback) {
  if (BackwardPass::current == nullptr) throw InvalidArgument("queue_callback: no backward pass is running on this thread");
  BackwardPass::current->queue(std::move(callback));
}

void register_backward_end_hook(const Tensor& result, std::function<void()> callback) {
  if (const auto node = node_of(result)) node->end_callbacks_.push_back(std::move(callback));
}

}  // namespace lockstep
