// One pass over the tape: the nodes that its roots depend on, newest first. The pass stops at its ends: for backward()
// these are the leaves; a checkpoint's pass has more. Subclasses decide what to do with the gradient of an end.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
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
    Tensor gradient;  // owned by the pass, which may overwrite it
  };

  BackwardPass() = default;
  virtual ~BackwardPass();  // nodes drop the pass's data, and are released unless it retains them
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // Finds every node that the roots depend on. Throws InvalidArgument if one was released.
  void collect(std::vector<Root> roots);
  // Runs them, then calls the callbacks that were queued.
  void run(bool retain_graph);
  // Counted in the process, from 1, so that passes of two threads differ.
  std::uint64_t number() const { return number_; }
  // Declares that the running node has written its part of an input's gradient. For a node that knows this before it
  // returns.
  void finish_input(std::size_t index);
  // Declares that the running node has no gradient of this input in this pass. A leaf is left as if the node had not
  // read it; any other input gets zeros.
  void skip_input(std::size_t index);
  bool retains_graph() const { return retain_graph_; }

  void queue(std::function<void()> callback) { queued_.push_back(std::move(callback)); }
  // Takes over what a pass of another thread, which computes a part of this one, was to call at its end.
  void call_at_end(std::vector<std::function<void()>> callbacks) { note_end_callbacks(callbacks); }
  virtual std::vector<LeafUse> leaves() const { return {}; }

  // The outermost pass of this thread. A checkpoint's node runs a pass inside a pass; users only see the outermost.
  static BackwardPass* outermost() { return outermost_; }
  static BackwardPass* innermost() { return innermost_; }
  // The operator whose backward runs in the innermost pass, for messages.
  static const char* name_of_running();

 protected:
  virtual bool is_end(const VariableState& state) const { return state.node == nullptr && state.wants_grad; }
  virtual void note_end(const Tensor& end, VariableState& state, const char* reader) = 0;  // once per use
  virtual GradTarget end_target(const Tensor& end, VariableState& state) = 0;              // the target of one use
  virtual void end_written(const Tensor& end, VariableState& state) = 0;  // one use has written its part
  // One use has no gradient; `target` is what end_target() returned for it. By default the gradient is zeros.
  virtual void end_skipped(const Tensor& end, VariableState& state, const GradTarget& target);
  // True if the gradient of this node's result is wanted; the node then runs.
  virtual bool wants(const Node&) const { return true; }
  virtual bool runs(const Node&) const { return true; }
  virtual void take(const Node&, const Tensor& /*gradient*/) {}  // receives the complete gradient of its result
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
  // Returns the gradient that is passed to the node's backward.
  static Tensor call_result_hooks(const Node& node, Tensor gradient);
  void forget_incomplete(const Node& node);

  static thread_local BackwardPass *outermost_, *innermost_;

  std::vector<Root> roots_;
  std::vector<std::shared_ptr<Node>> nodes_;
  std::unordered_set<const Node*> found_;
  std::vector<GradTarget> targets_;  // of the running node
  // An input that occurs earlier among the node's inputs: its gradient gets its own memory and is added when the node
  // has returned. So a node may write its gradients in any order.
  struct Repeated {
    GradTarget target;
    Tensor gradient;
  };
  std::deque<Repeated> repeated_;  // of the running node; targets point into it
  // Flags that are set when a target is written; targets point here. If a target is also observed by an outer pass, its
  // flag is set as well.
  struct Written {
    bool here;
    bool* outside;
  };
  std::deque<Written> is_written_;
  const Node* running_ = nullptr;
  std::vector<bool> finished_;  // inputs of the running node
  std::vector<std::function<void()>> queued_;
  std::uint64_t number_ = 0;
  bool retain_graph_ = false;
  // Release remaining nodes at the end; false until the pass runs, because it has used nothing up before.
  bool releases_ = false;
};

}  // namespace lockstep
