#include "src/autograd/engine/backward_pass.h"

#include <algorithm>
#include <atomic>

#include "lockstep/autograd/autocast.h"

namespace lockstep {

namespace {

std::atomic<std::uint64_t> passes{0};  // number of passes begun in this process

VariableState* state_of(const Tensor& tensor) { return tensor.defined() ? variable_of(tensor) : nullptr; }

}  // namespace

thread_local BackwardPass* BackwardPass::outermost_ = nullptr;
thread_local BackwardPass* BackwardPass::innermost_ = nullptr;

BackwardPass::~BackwardPass() {
  for (const auto& node : nodes_) {
    node->result_grad_ = Tensor();
    node->result_grad_written_ = false;
    if (releases_) node->release();
  }
}

void BackwardPass::visit(const Tensor& input, const char* reader) {
  VariableState* state = state_of(input);
  if (state == nullptr) return;
  if (is_end(*state))
    note_end(input, *state, reader);
  else if (state->node && found_.insert(state->node.get()).second)
    nodes_.push_back(state->node);
}

// Recording order is a topological order.
void BackwardPass::collect(std::vector<Root> roots) {
  roots_ = std::move(roots);
  for (const Root& root : roots_) {
    Node::check_as_computed(root.result, "backward");
    visit(root.result, "backward");
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::shared_ptr<Node> node = nodes_[i];
    if (node->released())
      throw InvalidArgument(
          "backward: the tape of '{}' was freed by an earlier backward; compute the loss again, or keep the tape "
          "with .retain_graph = "
          "true. (Tensors that a checkpointed function stores elsewhere have no tape either.)",
          node->name());
    for (const Tensor& input : node->inputs()) visit(input, node->name());
  }
  std::sort(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) { return a->sequence() > b->sequence(); });
}

void BackwardPass::run(bool retain_graph) {
  struct Running {
    explicit Running(BackwardPass* pass) : before(std::exchange(innermost_, pass)) {
      if (before == nullptr) outermost_ = pass;
    }
    ~Running() {
      innermost_ = before;
      if (before == nullptr) outermost_ = nullptr;
    }
    BackwardPass* const before;
  } const running(this);
  number_ = ++passes;
  retain_graph_ = retain_graph;
  releases_ = true;
  for (Root& held : std::exchange(roots_, {})) {
    const Root root = std::move(held);
    target_of(root.result).give(root.gradient);
    if (VariableState* state = state_of(root.result); state != nullptr && is_end(*state))
      end_written(root.result, *state);
  }
  for (const auto& node : nodes_) run_node(*node);
  call_end_callbacks();
  releases_ = !retain_graph;
}

GradTarget BackwardPass::target_of(const Tensor& input) {
  VariableState* state = state_of(input);
  if (state == nullptr) return {};
  if (is_end(*state)) return end_target(input, *state);
  if (!state->node || !wants(*state->node)) return {};
  Node& producer = *state->node;
  const bool first = !std::exchange(producer.result_grad_written_, true);
  return {&producer.result_grad_, input, first, true};
}

void BackwardPass::make_targets(const Node& node) {
  targets_.clear();
  repeated_.clear();
  is_written_.clear();
  for (const Tensor& input : node.inputs()) {
    GradTarget target = target_of(input);
    const auto writes_there = [&](const GradTarget& other) { return target.memory_ == other.memory_; };
    if (target && target.accumulate() && std::any_of(targets_.begin(), targets_.end(), writes_there)) {
      repeated_.push_back({target, {}});
      target = GradTarget(&repeated_.back().gradient, input, true, true);
    }
    is_written_.push_back({false, target.is_written_});
    target.is_written_ = &is_written_.back().here;
    targets_.push_back(target);
  }
}

void BackwardPass::run_backward(Node& node, const Tensor& gradient) {
  make_targets(node);
  running_ = &node;
  finished_.assign(targets_.size(), false);
  try {
    const AutoCast no_cast(DType::kFloat32);  // a node's operators use the types on the tape
    node.backward(gradient, targets_);
    check_all_written(node);
  } catch (...) {
    forget_incomplete(node);
    throw;
  }
  for (const Repeated& each : repeated_)
    if (each.gradient.defined()) each.target.give(each.gradient);
}

// A target that was not written would pass for this step's gradient.
void BackwardPass::check_all_written(const Node& node) const {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const auto [here, outside] = is_written_[i];
    if (here && outside != nullptr) *outside = true;
    if (targets_[i] && !here)
      throw InvalidArgument(
          "backward: {} wrote no gradient of its input {}, {}: write each wanted target, with zeros where it has "
          "none",
          node.name(), i, describe(node.inputs()[i]));
  }
}

const char* BackwardPass::name_of_running() {
  return innermost_ == nullptr || innermost_->running_ == nullptr ? "the caller" : innermost_->running_->name();
}

void BackwardPass::run_node(Node& node) {
  if (wants(node)) {
    const Tensor gradient = call_result_hooks(node, std::exchange(node.result_grad_, Tensor()));
    take(node, gradient);
    if (runs(node)) run_backward(node, gradient);
  }
  outermost_->note_end_callbacks(node.end_callbacks_);
  if (runs(node))
    for (std::size_t i = 0; i < node.inputs().size(); ++i) finish_input(i);
  if (!retain_graph_) node.release();
}

Tensor BackwardPass::call_result_hooks(const Node& node, Tensor gradient) {
  if (node.result_hooks_.empty()) return gradient;
  const auto hooks = node.result_hooks_;  // a hook that is added now takes effect in the next pass
  for (const auto& hook : hooks) {
    const ResultGradHook called = *hook;  // the hook may remove itself
    if (!called) continue;
    const long handles = gradient.buffer().use_count();
    called(detach(gradient));
    // The hook keeps it, or a view of it; later nodes would overwrite it.
    if (gradient.buffer().use_count() > handles) gradient = gradient.clone();
  }
  return gradient;
}

void BackwardPass::finish_input(std::size_t index) {
  if (finished_[index]) return;
  finished_[index] = true;
  const Tensor& input = running_->inputs()[index];
  if (VariableState* state = state_of(input); state != nullptr && is_end(*state)) end_written(input, *state);
}

void BackwardPass::skip_input(std::size_t index) {
  const Tensor& input = running_->inputs()[index];
  const GradTarget& target = targets_[index];
  finished_[index] = true;
  if (target.is_written_ != nullptr) *target.is_written_ = true;
  VariableState* const state = state_of(input);
  if (state != nullptr && is_end(*state))
    end_skipped(input, *state, target);
  else if (target)
    target.give(Tensor::zeros(input.shape(), DType::kFloat32, input.device()));
}

void BackwardPass::end_skipped(const Tensor& end, VariableState& state, const GradTarget& target) {
  if (target) target.give(Tensor::zeros(end.shape(), DType::kFloat32, end.device()));
  end_written(end, state);
}

// The node has thrown: memory of a leaf that it was the first to write holds no gradient.
void BackwardPass::forget_incomplete(const Node& node) {
  for (std::size_t i = 0; i < targets_.size(); ++i)
    if (targets_[i] && !finished_[i] && !targets_[i].accumulate() && !targets_[i].takes()) clear_grad(node.inputs()[i]);
}

void BackwardPass::call_end_callbacks() { call_all(queued_); }

void BackwardPass::call_all(std::vector<std::function<void()>>& callbacks) {
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    const std::function<void()> callback = std::move(callbacks[i]);  // the callback may queue another
    callback();
  }
}

}  // namespace lockstep
