// The pass over the tape that computes the gradients of chosen tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/autograd/engine/backward_pass.h"

namespace lockstep {

// Computes gradients of chosen tensors. For gradients(), these are leaves and results, and the pass continues through
// the results. For a checkpoint, which works in a segment of the tape, these are the ends of the segment, where the
// pass stops. Nodes that lead to no chosen tensor do not run.
class CapturePass : public BackwardPass {
 public:
  // The second constructor: `finished(i)` is called when the gradient of capture i is complete.
  CapturePass() = default;
  CapturePass(const TapeSegment* segment, std::function<void(std::size_t)> finished)
      : segment_(segment), finished_(std::move(finished)) {}

  // Sends the gradient of `tensor` to `target`, or nowhere if that wants none. Several tensors may share an index.
  void capture(std::size_t index, const Tensor& tensor, const GradTarget& target);
  // Call after collect(): finds the nodes that lead to a captured tensor.
  void prune();
  bool reached(std::size_t index) const { return captures_[index].reached; }

 protected:
  bool is_end(const VariableState& state) const override;
  void note_end(const Tensor& end, VariableState& state, const char* reader) override;
  GradTarget end_target(const Tensor& end, VariableState& state) override;
  void end_written(const Tensor& end, VariableState& state) override;
  bool wants(const Node& node) const override { return wanted_.count(&node) != 0; }
  bool runs(const Node& node) const override { return running_.count(&node) != 0; }
  void take(const Node& node, const Tensor& gradient) override;

 private:
  struct Capture {
    GradTarget target;
    int pending_uses = 0;
    bool reached = false, written = false;
  };
  Capture* capture_of(const VariableState& state);

  const TapeSegment* const segment_ = nullptr;
  const std::function<void(std::size_t)> finished_;
  std::vector<Capture> captures_;
  std::unordered_map<const VariableState*, std::size_t> index_of_;
  std::unordered_map<const Node*, std::size_t> index_of_node_;
  std::unordered_set<const Node*> wanted_, running_;
};

}  // namespace lockstep
