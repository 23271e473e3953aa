// Backward: walks the tape in reverse topological order, on the calling thread.
//
// A leaf's gradient is final when every node of this pass that uses the leaf has run; its hooks fire right then, while
// the rest of backward still lies ahead. Nodes run in the reverse order of their recording, so that the order in which
// gradients become final is the same on all ranks that run the same program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Differentiates `root`, a float32 scalar (InvalidArgument otherwise, or when nothing below it wants a gradient, or
// when backward ran on it before: the tape is freed on the way). Gradients add to those of earlier passes unless
// cleared. If a node or a hook throws, the tape and what was queued for the end are dropped and the exception passes on.
void backward(const Tensor& root);

// The number of the backward pass that runs on this thread, from 1; 0 outside. Tells one pass from the next.
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

// Calls `callback` at the end of every backward pass that goes through `result`, before those queued by
// queue_callback() in that pass. A wrapper learns by it of passes that reach none of its parameters. No effect on a
// result that was not recorded.
void register_backward_end_hook(const Tensor& result, std::function<void()> callback);

}  // namespace lockstep
