// The backward pass: walks the tape in reverse topological order on the calling thread.
//
// A leaf's gradient is final when every node of this pass that uses the leaf has run. Its hooks run immediately, while
// the rest of backward is still to come. Nodes run in the reverse order of their recording, so gradients become final
// in the same order on all ranks that run the same program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Differentiates `root` with respect to all leaves that it depends on. Without options.gradient, the root is a float32
// scalar whose gradient is 1. With it, the root has any shape, and the result is the vector-Jacobian product with that
// gradient, which is only read.
//
// Gradients are added to those of earlier passes unless these were cleared. The tape is freed during the pass, each
// activation after its last use, unless options.retain_graph keeps it for another pass over the same nodes.
//
// Throws InvalidArgument, before any node runs: if the root is not a scalar and no gradient is given; if the gradient
// has another shape, dtype or device than the root; if nothing that the root depends on requires a gradient; if the
// tape was freed; if a pass is already running on this thread. If a node or a hook throws, the tape and all queued
// callbacks are dropped, even with retain_graph, and the exception is passed on; leaves whose gradient was incomplete
// have none.
void backward(const Tensor& root, const BackwardOptions& options = {});

struct GradientsOptions {
  // Gradients of the roots, as in BackwardOptions::gradient; empty or undefined means 1, for scalars.
  Tensors gradients = {};
  bool retain_graph = false;
  bool allow_unused = false;  // return an undefined tensor, instead of throwing, for an input on which no root depends
};

// Returns the gradients of the sum of the roots with respect to `inputs`, in their order. Inputs are leaves that
// require a gradient (require_grad), or intermediate results. Each gradient has the shape, dtype and device of its
// input. Only nodes between inputs and roots run. No grad() is read or written and no grad hook or end hook is called,
// so DistributedDataParallel does not take part. Everything else is as in backward(). Throws InvalidArgument that names
// an input on which no root depends or that requires no gradient; the tape is then unchanged.
Tensors gradients(const Tensors& roots, const Tensors& inputs, const GradientsOptions& options = {});
Tensors gradients(const Tensor& root, const Tensors& inputs, const GradientsOptions& options = {});

// The number of the pass, of backward() or gradients(), that runs on this thread; 0 outside a pass. Numbers are unique
// within the process, across threads.
std::uint64_t backward_pass();
inline bool in_backward() { return backward_pass() != 0; }

// A leaf whose gradient a pass computes.
struct LeafUse {
  Tensor leaf;
  const char* reader;  // name of an operator that reads the leaf
  bool has_hooks;      // the leaf has a grad hook
};
// The leaves of the pass that runs on this thread, until its last callback has returned; empty outside a pass.
std::vector<LeafUse> leaves_of_backward();

// During a pass: calls `callback` once, after all nodes and hooks have run. Callbacks run in the order of queuing.
// Throws InvalidArgument outside a pass.
void queue_callback(std::function<void()> callback);

// Called when the gradient of a result is complete, before the node that computed the result runs. The hook may change
// the gradient in place and may keep it: later steps of the pass do not change a kept gradient.
using ResultGradHook = std::function<void(const Tensor& gradient)>;
// Registers `hook` for every pass through `result`. Hooks run in order of registration. A hook is removed with its
// handle, or with the tape. Throws InvalidArgument for a leaf (use register_grad_hook) and for a result that was not
// recorded.
[[nodiscard]] HookHandle register_result_grad_hook(const Tensor& result, ResultGradHook hook);

// Registers `callback` for the end of every backward() that passes through `result`; it runs before the callbacks that
// queue_callback() queued in that pass. A wrapper uses it to notice passes that reach none of its parameters. Has no
// effect on a result that was not recorded.
void register_backward_end_hook(const Tensor& result, std::function<void()> callback);

}  // namespace lockstep
#pragma GCC visibility pop
