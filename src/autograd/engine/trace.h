// Everything that this thread's operators compute while a trace lives, in order, also if no input requires a gradient
// and inside a NoGrad: for a reader of a whole forward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/autograd/node.h"

namespace lockstep {

class Trace {
 public:
  struct Step {
    std::shared_ptr<Node> node;
    Tensor result;
    // Versions of the inputs and of the saved tensors when the operator read them; 0: undefined.
    std::vector<std::uint64_t> input_versions, saved_versions;
  };

  Trace() : before_(std::exchange(current_, this)) {}
  ~Trace() { current_ = before_; }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  const std::vector<Step>& steps() const { return steps_; }
  static const std::vector<Tensor>& saved_of(const Step& step) { return step.node->saved_; }

  static bool active() { return current_ != nullptr; }
  // Called when a node is recorded.
  static void note(const Tensor& result, const std::shared_ptr<Node>& node) {
    if (current_ == nullptr || node == nullptr) return;
    Step step{node, result, {}, node->saved_versions_};
    for (const Tensor& input : node->inputs_) step.input_versions.push_back(input.defined() ? input.version() : 0);
    current_->steps_.push_back(std::move(step));
  }

 private:
  static inline thread_local Trace* current_ = nullptr;
  Trace* const before_;
  std::vector<Step> steps_;
};

}  // namespace lockstep
