#include "src/autograd/engine/capture_pass.h"

namespace lockstep {

void CapturePass::capture(std::size_t index, const Tensor& tensor, const GradTarget& target) {
  if (captures_.size() <= index) captures_.resize(index + 1);
  captures_[index].target = target;
  const VariableState& state = *variable_of(tensor);
  if (is_end(state))
    index_of_.emplace(&state, index);
  else
    index_of_node_.emplace(state.node.get(), index);
}

CapturePass::Capture* CapturePass::capture_of(const VariableState& state) {
  const auto found = index_of_.find(&state);
  return found == index_of_.end() ? nullptr : &captures_[found->second];
}

// Oldest first: a node runs if the gradient of one of its inputs is wanted.
void CapturePass::prune() {
  for (const auto& [node, index] : index_of_node_) captures_[index].reached = found(node);
  for (auto at = nodes().rbegin(); at != nodes().rend(); ++at) {
    const Node* const node = at->get();
    for (const Tensor& input : node->inputs()) {
      const VariableState* state = input.defined() ? variable_of(input) : nullptr;
      if (state == nullptr) continue;
      const Capture* end = is_end(*state) ? capture_of(*state) : nullptr;
      if ((end != nullptr && end->target) || wanted_.count(state->node.get()) != 0) running_.insert(node);
    }
    if (runs(*node) || index_of_node_.count(node) != 0) wanted_.insert(node);
  }
}

bool CapturePass::is_end(const VariableState& state) const {
  if (segment_ != nullptr && state.node) return !segment_->contains(*state.node);
  return BackwardPass::is_end(state);
}

void CapturePass::note_end(const Tensor& end, VariableState& state, const char* reader) {
  Capture* captured = capture_of(state);
  if (captured != nullptr) {
    captured->reached = true;
    ++captured->pending_uses;
  } else if (segment_ != nullptr) {
    throw InvalidArgument(
        "checkpoint: {} read {} when backward ran the function again, but in the first run no gradient went there: "
        "the function must "
        "do the same both times, and parameters must not be frozen or unfrozen in between",
        reader, describe(end));
  }
}

GradTarget CapturePass::end_target(const Tensor&, VariableState& state) {
  Capture* captured = capture_of(state);
  if (captured == nullptr || !captured->target) return {};
  return std::exchange(captured->written, true) ? captured->target.again() : captured->target;
}

void CapturePass::end_written(const Tensor&, VariableState& state) {
  Capture* captured = capture_of(state);
  if (captured != nullptr && --captured->pending_uses == 0 && finished_)
    finished_(static_cast<std::size_t>(captured - captures_.data()));
}

void CapturePass::take(const Node& node, const Tensor& gradient) {
  const auto found = index_of_node_.find(&node);
  if (found != index_of_node_.end()) captures_[found->second].target.give(runs(node) ? gradient.clone() : gradient);
}

}  // namespace lockstep
