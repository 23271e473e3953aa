#include "src/autograd/engine/tape_segment.h"

#include <atomic>
#include <unordered_set>
#include <utility>

#include "src/autograd/engine/variable_state.h"

namespace lockstep {

namespace {
std::atomic<std::uint64_t> segments{0};  // number of segments opened in this process
}

thread_local TapeSegment* TapeSegment::current_ = nullptr;

TapeSegment::TapeSegment() : id_(++segments) {}

TapeSegment::~TapeSegment() {
  for (const std::weak_ptr<Node>& recorded : nodes_)
    if (const auto node = recorded.lock()) node->release();
}

Tensor TapeSegment::record(const std::function<Tensor()>& function) {
  struct Recording {
    explicit Recording(TapeSegment* segment) : before(std::exchange(current_, segment)) {}
    ~Recording() { current_ = before; }
    TapeSegment* const before;
  } const recording(this);
  return function();
}

void TapeSegment::note(const std::shared_ptr<Node>& node) {
  if (current_ == nullptr || node == nullptr) return;
  node->segment_ = current_->id_;
  current_->nodes_.push_back(node);
}

std::vector<Tensor> TapeSegment::ends_below(const Tensor& result) const {
  std::vector<Tensor> ends;
  std::vector<const Node*> nodes;
  std::unordered_set<const void*> seen;  // nodes, and the states of ends
  const auto visit = [&](const Tensor& tensor) {
    const VariableState* state = tensor.defined() ? variable_of(tensor) : nullptr;
    if (state == nullptr) return;
    if (state->node && contains(*state->node)) {
      if (seen.insert(state->node.get()).second) nodes.push_back(state->node.get());
    } else if ((state->node || state->wants_grad) && seen.insert(state).second) {
      ends.push_back(tensor);
    }
  };
  visit(result);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const Tensor& input : nodes[i]->inputs()) visit(input);
  return ends;
}

}  // namespace lockstep
