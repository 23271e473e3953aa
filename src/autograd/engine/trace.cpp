#include "src/autograd/engine/trace.h"

#include <utility>

namespace lockstep {

thread_local Trace* Trace::current_ = nullptr;

Trace::Trace() : before_(std::exchange(current_, this)) {}
Trace::~Trace() { current_ = before_; }

const std::vector<Tensor>& Trace::saved_of(const Step& step) { return step.node->saved_; }

void Trace::note(const Tensor& result, const std::shared_ptr<Node>& node) {
  if (current_ == nullptr || node == nullptr) return;
  Step step{node, result, {}, node->saved_versions_};
  for (const Tensor& input : node->inputs_) step.input_versions.push_back(input.defined() ? input.version() : 0);
  current_->steps_.push_back(std::move(step));
}

}  // namespace lockstep
