// Activation checkpointing trades time for memory (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174).
//
//   Tensor h = checkpoint([&](const Tensor& x) { return block(x); }, images);
//
// The tape holds one node for the entire function, which keeps the function and its inputs. Backward runs the function
// again and differentiates that run. Both runs compute the same numbers: the second one starts from the RandomState,
// the sample_numbers() and the AutoCast of the first, and restores the thread's own afterwards.
//
// How it works. The first run is recorded like any other, so its tape shows which leaves and earlier results the
// function reads besides its inputs (a block's parameters); then that tape is released. These tensors become inputs of
// the one node. So backward knows in advance how often each leaf is used. A parameter's gradient is final, and its
// hooks run, once per pass, after all uses inside and outside of checkpoints: in the middle of a function's second run
// if nothing else uses the parameter. Gradients are written directly into the parameters' slots. Checkpoints may be
// nested; an inner function runs three times.
//
// Costs. Time: one more forward of the function. Memory between forward and backward: the inputs and the
// result. Memory while the function runs, in forward and in backward: its activations. A net of n equal layers in
// sqrt(n) checkpoints holds the activations of 2 sqrt(n) layers instead of n.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Returns function(inputs). The function receives views of the inputs (undefined ones as they are) and returns one
// tensor.
//
// The function runs again on the thread that calls backward(), so everything it captures by reference must outlive the
// tape. It must do the same in both runs: depend only on its inputs, captured tensors and random numbers. Its side
// effects (counters, prints, files) happen twice unless it checks recomputing(), as batch_norm() does before it updates
// the running statistics. Tensors that the function stores elsewhere have no history and cannot be differentiated.
//
// Under NoGrad, or when nothing that the function reads requires a gradient, nothing is kept. Throws InvalidArgument
// for an empty function, for an undefined result, and when the function changes an input in place. Backward throws
// InvalidArgument when one of the inputs, or of the leaves and results that the function read, has since been changed
// in place, and when the second run returns another shape or type or reads other leaves. Exceptions of the function are
// passed on, and the tape is freed.
Tensor checkpoint(std::function<Tensor(const Tensors&)> function, const Tensors& inputs);
Tensor checkpoint(std::function<Tensor(const Tensor&)> function, const Tensor& input);

// True while backward, on this thread, runs a checkpointed function again.
bool recomputing();
// True while this thread runs a checkpointed function, for the first time or again.
bool in_checkpoint();

}  // namespace lockstep
#pragma GCC visibility pop
