// Everything that this thread's operators compute while a trace lives, in order, also if no input requires a gradient
// and inside a NoGrad: for a reader of a whole forward pass.
#pragma once

#include <cstdint>
#include <memory>
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

  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  const std::vector<Step>& steps() const { return steps_; }
  static const std::vector<Tensor>& saved_of(const Step& step);

  static bool active() { return current_ != nullptr; }
  static void note(const Tensor& result, const std::shared_ptr<Node>& node);  // called when a node is recorded

 private:
  static thread_local Trace* current_;
  Trace* const before_;
  std::vector<Step> steps_;
};

}  // namespace lockstep
