// Backward: walks the tape in reverse topological order, on the calling thread.
//
// A leaf's gradient is final when every node of this pass that uses the leaf has run; its hooks fire right then, while
// the rest of backward still lies ahead. Nodes run in the reverse order of their recording, so that the order in which
// gradients become final is the same on all ranks that run the same program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Differentiates `root` with respect to the leaves below it. Without options.gradient the root is a float32 scalar,
// whose gradient is 1. With it the root has any shape, and the result is the product of that gradient and the Jacobian
// matrix; it is only read.
//
// Gradients add to those of earlier passes unless cleared. The tape is freed on the way, activations as soon as they
// are used up, unless options.retain_graph keeps it for another pass over the same nodes. InvalidArgument, before
// anything ran: a root that is no scalar without a gradient, a gradient of another shape, dtype or device, nothing
// below the root that wants a gradient, a tape that was freed, a pass that runs on this thread already. If a node or a
// hook throws, the tape and what was queued for the end are dropped, retain_graph or not, and the exception passes on;
// leaves whose gradient was incomplete have none.
void backward(const Tensor& root, const BackwardOptions& options = {});

struct GradientsOptions {
  Tensors gradients = {};  // of the roots, as BackwardOptions::gradient; empty, or undefined ones: 1, of scalars
  bool retain_graph = false;
  bool allow_unused = false;  // an undefined tensor for an input on which no root depends, instead of InvalidArgument
};

// The gradients of the roots' sum with respect to `inputs`, in their order: leaves that want a gradient (require_grad),
// or results on the way to the roots. Each has its input's shape, dtype and device. Only the nodes between inputs and
// roots run. No grad() is read or written, no grad hook and no end hook is called: a DistributedDataParallel hears
// nothing of it. Otherwise as backward(), which see. An input on which no root depends, or that wants no gradient, is
// an InvalidArgument that names it; the tape is then as it was.
Tensors gradients(const Tensors& roots, const Tensors& inputs, const GradientsOptions& options = {});
Tensors gradients(const Tensor& root, const Tensors& inputs, const GradientsOptions& options = {});

// The number of the pass, by backward() or gradients(), that runs on this thread; 0 outside. No two passes of a process
// have one number, whatever threads run them.
std::uint64_t backward_pass();
inline bool in_backward() { return backward_pass() != 0; }

// A leaf that a pass computes the gradient of.
struct LeafUse {
  Tensor leaf;
  const char* reader;  // an operator that reads it
  bool has_hooks;      // a hook waits for its gradient
};
// Those of the pass that runs on this thread, until its last callback has returned; none outside.
std::vector<LeafUse> leaves_of_backward();

// During a pass: calls `callback` once, when all nodes have run and all hooks have fired, in order of queuing.
// Throws InvalidArgument outside a pass.
void queue_callback(std::function<void()> callback);

// Called when the gradient of a result is complete, before the node that computed it runs; may change the gradient in
// place, and may keep it: what comes after does not change what a hook has kept.
using ResultGradHook = std::function<void(const Tensor& gradient)>;
// Calls `hook` in every pass through `result`, in order of registration; it goes with its handle, or with the tape.
// InvalidArgument for a leaf (which see register_grad_hook) and for a result that was not recorded.
[[nodiscard]] HookHandle register_result_grad_hook(const Tensor& result, ResultGradHook hook);

// Calls `callback` at the end of every pass by backward() that goes through `result`, before those queued by
// queue_callback() in that pass. A wrapper learns by it of passes that reach none of its parameters. No effect on a
// result that was not recorded.
void register_backward_end_hook(const Tensor& result, std::function<void()> callback);

}  // namespace lockstep
#pragma GCC visibility pop
