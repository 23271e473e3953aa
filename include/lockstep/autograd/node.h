// The tape: one Node for each operator call, linked from each result to the tensors that it was computed from.
//
// A differentiable operator is a function that computes its result with the device's kernels and, if recording() is
// true, attaches a Node subclass whose backward() writes the gradients of the inputs. See extend.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// The place where a node's backward writes the gradient of one input: a parameter's slot, or a temporary.
class GradTarget {
 public:
  GradTarget() = default;  // no gradient is wanted
  // `memory` is allocated on first use, with the shape, type and device of `input`. `first_write`: overwrite the memory
  // instead of adding to it.
  GradTarget(Tensor* memory, const Tensor& input, bool first_write, bool temporary)
      : memory_(memory),
        shape_(input.shape()),
        type_(input.dtype()),
        device_(&input.device()),
        first_write_(first_write),
        temporary_(temporary) {}

  explicit operator bool() const { return memory_ != nullptr; }  // false: do not compute this gradient
  bool accumulate() const { return !first_write_; }              // add to the present value
  bool takes() const { return first_write_ && temporary_; }      // give() will keep the memory of the gradient
  GradTarget again() const;                                      // for a second write to the same input: adds
  // The view that a kernel writes to or adds to; without memory if the gradient is not wanted.
  OutputView view() const;
  operator OutputView() const { return view(); }

  // Alternative to view(): hands over a finished gradient of any float type. It is moved if it can become the temporary
  // itself, and otherwise copied, converted or added. Later nodes overwrite a moved gradient in place, so never give a
  // saved tensor; give its clone(). Throws InvalidArgument if the number of elements or the device differs from the
  // input's.
  void give(const Tensor& gradient) const;

 private:
  friend class BackwardPass;

  Tensor* memory_ = nullptr;
  Shape shape_;
  DType type_ = DType::kFloat32;
  Device* device_ = nullptr;
  bool* is_written_ = nullptr;  // if not null: set to true by the first write
  bool first_write_ = false;
  bool temporary_ = false;
};

// Describes what a node computed from its inputs, by name: "dim", "factor".
using Attributes = std::map<std::string, std::variant<std::int64_t, double, std::vector<std::int64_t>>>;

class Node {
 public:
  explicit Node(std::vector<Tensor> inputs, std::vector<Tensor> saved = {});
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual const char* name() const = 0;
  // For readers of the tape, such as export_onnx(); nullopt: the node does not say what it computes.
  virtual std::optional<Attributes> attributes() const { return std::nullopt; }

  // `result_grad` is the finished gradient of this node's result; the node owns it and may overwrite it in place. Saved
  // tensors must stay unchanged: with retain_graph the node runs again. `targets` has one entry per input; each wanted
  // entry must be written exactly once, in any order (InvalidArgument if one is not written). Each has its own memory,
  // even if one tensor is two inputs.
  virtual void backward(const Tensor& result_grad, std::span<const GradTarget> targets) = 0;

  const std::vector<Tensor>& inputs() const { return inputs_; }
  std::uint64_t sequence() const {
    return sequence_;
  }                // greater than its inputs' and than those of this thread's earlier nodes
  void release();  // called after the last backward: frees the activations while the pass proceeds
  bool released() const { return released_; }

 protected:
  const Tensor& input(std::size_t index) const { return inputs_[index]; }
  // Undefined if an undefined tensor was saved. Throws InvalidArgument if the tensor has since been changed in place.
  const Tensor& saved(std::size_t index) const;
  // Called by release(): frees what a node keeps besides tensors, such as a Buffer.
  virtual void release_members() {}

 private:
  friend class BackwardPass;
  friend class TapeSegment;
  friend class Trace;
  friend void attach(const Tensor& result, std::shared_ptr<Node> node);
  friend HookHandle register_result_grad_hook(const Tensor& result, std::function<void(const Tensor& gradient)> hook);
  friend void register_backward_end_hook(const Tensor& result, std::function<void()> callback);

  // Throws InvalidArgument if `tensor` is a result that was changed in place after its node computed it. `reader` is an
  // operator's name.
  static void check_as_computed(const Tensor& tensor, const char* reader);

  std::vector<Tensor> inputs_;  // backward() writes the gradients of these; the node keeps them alive
  std::vector<Tensor> saved_;   // values that backward() reads; never the node's own result with its meta (a cycle)
  std::vector<std::uint64_t> saved_versions_;
  std::vector<std::function<void()>> end_callbacks_;
  std::vector<std::shared_ptr<std::function<void(const Tensor&)>>> result_hooks_;  // empty functions: removed hooks
  Tensor result_grad_;  // during a pass: accumulates the gradients that the consumers write
  std::uint64_t sequence_;
  std::uint64_t result_version_ = 0;  // version of the result when it was computed
  std::uint64_t segment_ = 0;         // see src/autograd/engine/tape_segment.h
  bool result_grad_written_ = false;
  bool released_ = false;
};

// True if an operator with these inputs must record a node: one of them requires a gradient and no NoGrad is active, or
// a Trace lives.
bool recording(std::span<const Tensor> inputs);

// Declares that `node` computed `result`. Throws InvalidArgument if an input of the node is a result that has since
// been changed in place.
void attach(const Tensor& result, std::shared_ptr<Node> node);
// The node that computed the tensor; null for leaves and for results that were not recorded.
std::shared_ptr<Node> node_of(const Tensor& tensor);

}  // namespace lockstep
#pragma GCC visibility pop
