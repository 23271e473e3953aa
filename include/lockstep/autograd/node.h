// The tape: one Node an operator call, linked from results to what they were computed from.
//
// A new differentiable operator is a function in ops.h that computes its result with the device's kernels and, when
// recording() says so, attaches a Node subclass whose backward() writes the gradients of its inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Where a node's backward writes the gradient of one input: straight into a parameter's slot, or into a temporary.
struct GradTarget {
  float* data = nullptr;    // null: this input wants no gradient, compute nothing
  bool accumulate = false;  // add to what is there, instead of overwriting it

  explicit operator bool() const { return data != nullptr; }
};

class Node {
 public:
  explicit Node(std::vector<Tensor> inputs) : inputs_(std::move(inputs)) {}
  virtual ~Node() = default;
  virtual const char* name() const = 0;

  // `result_grad` is the finished gradient of this node's result; the node owns it and may overwrite it in place.
  // `targets` has one entry an input, in order; each entry with data must be written exactly once.
  virtual void backward(const Tensor& result_grad, std::span<const GradTarget> targets) = 0;

  const std::vector<Tensor>& inputs() const { return inputs_; }
  void release() {
    inputs_.clear();
    saved_.clear();
  }  // after backward: activations are freed as it proceeds

 protected:
  std::vector<Tensor> inputs_;  // whose gradients backward() writes; also keeps them alive
  std::vector<Tensor> saved_;   // whatever else backward() needs
};

// Should an operator with these inputs record a node? (A gradient is wanted and no NoGrad is active.)
bool recording(std::span<const Tensor> inputs);

// Declares that `result` was computed by `node`.
void attach(const Tensor& result, std::shared_ptr<Node> node);
// The node that computed it; null for leaves and for results that were not recorded.
std::shared_ptr<Node> node_of(const Tensor& tensor);

}  // namespace lockstep
