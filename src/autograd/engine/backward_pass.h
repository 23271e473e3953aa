// One pass over the tape: the nodes below its roots, newest first. A pass has ends, tensors at which it goes no deeper:
// the leaves below backward()'s root, those and more below a checkpoint's. What becomes of the gradient of an end is a
// subclass's to say.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/node.h"
#include "src/autograd/engine/tape_segment.h"
#include "src/autograd/engine/variable_state.h"

namespace lockstep {

class BackwardPass {
 public:
  struct Root {
    Tensor result;
    Tensor gradient;  // the pass's own, to overwrite
  };

  BackwardPass() = default;
  virtual ~BackwardPass();  // however the pass ends: nodes forget it, and are released unless it retains them
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // Finds every node below the roots. Throws InvalidArgument when one was released.
  void collect(std::vector<Root> roots);
  // Runs them, and calls what was queued for the end.
  void run(bool retain_graph);
  // Counted in the process, from 1, so that passes of two threads differ.
  std::uint64_t number() const { return number_; }
  // The gradient of an input of the node that runs is complete as far as this node goes: for a node that knows so
  // before it returns.
  void finish_input(std::size_t index);

  void queue(std::function<void()> callback) { queued_.push_back(std::move(callback)); }
  virtual std::vector<LeafUse> leaves() const { return {}; }

  // Of this thread. A checkpoint's node runs a pass inside of a pass: what the world sees is the outermost.
  static BackwardPass* outermost() { return outermost_; }
  static BackwardPass* innermost() { return innermost_; }
  // The operator whose backward runs in the innermost pass, for messages.
  static const char* name_of_running();

 protected:
  virtual bool is_end(const VariableState& state) const { return state.node == nullptr && state.wants_grad; }
  virtual void note_end(const Tensor& end, VariableState& state, const char* reader) = 0;  // once a use
  virtual GradTarget end_target(const Tensor& end, VariableState& state) = 0;              // of one use
  virtual void end_written(const Tensor& end, VariableState& state) = 0;                   // by one use
  // Is the gradient of this node's result wanted? Does the node then run?
  virtual bool wants(const Node&) const { return true; }
  virtual bool runs(const Node&) const { return true; }
  virtual void take(const Node&, const Tensor& /*gradient*/) {}  // of its result, complete
  virtual void note_end_callbacks(const std::vector<std::function<void()>>&) {}
  virtual void call_end_callbacks();

  static void call_all(std::vector<std::function<void()>>& callbacks);
  const std::vector<std::shared_ptr<Node>>& nodes() const { return nodes_; }  // newest first
  bool found(const Node* node) const { return found_.count(node) != 0; }

 private:
  void visit(const Tensor& input, const char* reader);
  GradTarget target_of(const Tensor& input);
  void make_targets(const Node& node);
  void run_node(Node& node);
  void run_backward(Node& node, const Tensor& gradient);
  void check_all_written(const Node& node) const;
  // What the node's backward gets.
  static Tensor call_result_hooks(const Node& node, Tensor gradient);
  void forget_incomplete(const Node& node);

  static thread_local BackwardPass *outermost_, *innermost_;

  std::vector<Root> roots_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::unordered_set<const Node*> found_;
  std::vector<GradTarget> targets_;  // of the node that runs
  // An input that is an earlier input of the node, too: its gradient gets memory of its own, and is added when the node
  // has returned. So a node may write in any order, and all of its gradients at once.
  struct Repeated {
    GradTarget target;
    Tensor gradient;
  };
  std::deque<Repeated> repeated_;  // of the node that runs; targets point into it
  // Whether its target is, which points here; and where a pass outside of this one asks the same of the target that it
  // gave.
  struct Written {
    bool here;
    bool* outside;
  };
  std::deque<Written> is_written_;
  const Node* running_ = nullptr;
  std::vector<bool> finished_;  // its inputs
  std::vector<std::function<void()>> queued_;
  std::uint64_t number_ = 0;
  bool retain_graph_ = false;
  bool releases_ = false;  // what is left when the pass goes; before it runs it has used nothing up
};

// Gradients for chosen tensors. gradients() chooses leaves and results; the pass goes through the results. Within a
// segment of the tape, for a checkpoint, the ends of the segment are chosen, and the pass stops there. Nodes that lead
// to no chosen tensor do not run.
class CapturePass final : public BackwardPass {
 public:
  // The second: `finished(i)` is called when the gradient of capture i is complete.
  CapturePass() = default;
  CapturePass(const TapeSegment* segment, std::function<void(std::size_t)> finished)
      : segment_(segment), finished_(std::move(finished)) {}

  // The gradient of `tensor` goes to `target`; with one that wants nothing, nowhere. Several tensors may have one
  // index.
  void capture(std::size_t index, const Tensor& tensor, const GradTarget& target);
  // After collect(): which nodes lead to a captured tensor.
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
