// The tape: one Node an operator call, linked from results to what they were computed from.
//
// A differentiable operator is a function that computes its result with the device's kernels and, when recording() says
// so, attaches a Node subclass whose backward() writes the gradients of its inputs: see extend.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Where a node's backward puts the gradient of one input: straight into a parameter's slot, or into a temporary.
class GradTarget {
 public:
  GradTarget() = default;  // wants nothing
  // `memory` is filled in on first use, with the shape, type and device of `input`; `first_write`: overwrite what is
  // there instead of adding to it.
  GradTarget(Tensor* memory, const Tensor& input, bool first_write, bool temporary)
      : memory_(memory),
        shape_(input.shape()),
        type_(input.dtype()),
        device_(&input.device()),
        first_write_(first_write),
        temporary_(temporary) {}

  explicit operator bool() const { return memory_ != nullptr; }  // false: compute nothing for this input
  bool accumulate() const { return !first_write_; }              // add to what is there
  bool takes() const { return first_write_ && temporary_; }      // give() will keep the gradient's memory itself
  GradTarget again() const;                                      // for whoever writes after the first one: adds
  // Where to write, or to add, as a kernel takes it; a view without memory when not wanted.
  OutputView view() const;
  operator OutputView() const { return view(); }

  // Instead of view(): hands over a finished gradient of any float type. Moves it when it can become the temporary
  // itself, else copies, converts or adds. What is moved is overwritten in place by the nodes below: never give a saved
  // tensor, but its clone(). InvalidArgument where it has not as many elements as the input, or is on another device.
  void give(const Tensor& gradient) const;

 private:
  friend class BackwardPass;

  Tensor* memory_ = nullptr;
  Shape shape_;
  DType type_ = DType::kFloat32;
  Device* device_ = nullptr;
  bool* is_written_ = nullptr;  // not null: set with the first write
  bool first_write_ = false;
  bool temporary_ = false;
};

class Node {
 public:
  explicit Node(std::vector<Tensor> inputs, std::vector<Tensor> saved = {});
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual const char* name() const = 0;

  // `result_grad` is the finished gradient of this node's result; the node owns it and may overwrite it in place. It
  // leaves what it saved as it is: with retain_graph it runs again. `targets` has one entry an input; each that is
  // wanted must be written exactly once, in any order (one that is not: InvalidArgument). Each has memory of its own,
  // also where one tensor is two inputs.
  virtual void backward(const Tensor& result_grad, std::span<const GradTarget> targets) = 0;

  const std::vector<Tensor>& inputs() const { return inputs_; }
  std::uint64_t sequence() const { return sequence_; }  // above its inputs' and this thread's earlier nodes'
  void release();  // after its last backward: activations are freed as a pass proceeds
  bool released() const { return released_; }

 protected:
  const Tensor& input(std::size_t index) const { return inputs_[index]; }
  // Maybe undefined, as it was given. Throws InvalidArgument when it was changed in place since.
  const Tensor& saved(std::size_t index) const;
  // Called by release(): frees what a node keeps besides tensors (a bare buffer).
  virtual void release_members() {}

 private:
  friend class BackwardPass;
  friend class TapeSegment;
  friend void attach(const Tensor& result, std::shared_ptr<Node> node);
  friend HookHandle register_result_grad_hook(const Tensor& result, std::function<void(const Tensor& gradient)> hook);
  friend void register_backward_end_hook(const Tensor& result, std::function<void()> callback);

  // Throws InvalidArgument when `tensor` is a result that was changed in place since its node computed it; `reader` is
  // an operator's name.
  static void check_as_computed(const Tensor& tensor, const char* reader);

  std::vector<Tensor> inputs_;  // whose gradients backward() writes; also keeps them alive
  std::vector<Tensor> saved_;   // whose values backward() reads; never the node's own result with its meta (a cycle)
  std::vector<std::uint64_t> saved_versions_;
  std::vector<std::function<void()>> end_callbacks_;
  std::vector<std::shared_ptr<std::function<void(const Tensor&)>>> result_hooks_;  // empty functions: removed
  Tensor result_grad_;  // while a pass runs: gathers what the consumers write
  std::uint64_t sequence_;
  std::uint64_t result_version_ = 0;  // of the result, when it was computed
  std::uint64_t segment_ = 0;         // see src/autograd/engine/tape_segment.h
  bool result_grad_written_ = false;
  bool released_ = false;
};

// Should an operator with these inputs record a node? (A gradient is wanted and no NoGrad is active.)
bool recording(std::span<const Tensor> inputs);

// Declares that `result` was computed by `node`. InvalidArgument: an input of the node is a result that was changed in
// place since.
void attach(const Tensor& result, std::shared_ptr<Node> node);
// The node that computed it; null for leaves and for results that were not recorded.
std::shared_ptr<Node> node_of(const Tensor& tensor);

}  // namespace lockstep
#pragma GCC visibility pop
