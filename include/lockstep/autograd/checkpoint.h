// Activation checkpointing: memory for time (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174).
//
//   Tensor h = checkpoint([&](const Tensor& x) { return block(x); }, images);
//
// The tape holds one node for the whole function, which keeps the function and its inputs. Backward runs the function
// again, and differentiates that run. Both times the same numbers come out: the second run starts from the RandomState,
// the sample_numbers() and the AutoCast of the first, and leaves those of its thread as they were.
//
// How it works. The first run is recorded like any other, so that its tape tells which leaves and earlier results the
// function reads besides its inputs (a block's parameters); then that tape is released. These tensors become inputs of
// the one node. So backward knows before it begins how often each leaf is used, and a parameter's gradient is final,
// and its hooks are called, once a pass, when all uses inside and outside of checkpoints have run: in the middle of a
// function's second run if nothing else uses the parameter. Gradients are written straight into the parameters' slots.
// Functions may contain further checkpoints, whose functions then run three times.
//
// What it costs. Time: one more forward of the function. Memory between forward and backward: the inputs, and the
// result. While the function runs, in forward and in backward: its activations. A net of n equal layers in sqrt(n)
// checkpoints holds activations of 2 sqrt(n) layers instead of n.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Returns function(inputs). The function gets views of the inputs (undefined ones as they are) and returns one tensor.
// It
//   - runs again on the thread that calls backward(), and outlives the tape with all that it captures by reference;
//   - does the same both times: it depends on its inputs, captured tensors and random numbers alone. What it counts,
//   prints or writes
//     happens twice, unless it asks recomputing(), as batch_norm() does before it changes running statistics;
//   - leaves tensors that it puts aside without history: they cannot be differentiated.
// Under NoGrad, or when nothing that it reads wants a gradient, nothing is kept. Throws InvalidArgument for an empty
// function or an undefined result, or when the function changes an input in place. Backward throws InvalidArgument when
// one of the inputs, or of the leaves and results that the function read, was changed in place since, or when the
// second run returns another shape or type or reads other leaves; what the function throws passes on, and the tape is
// freed.
Tensor checkpoint(std::function<Tensor(const Tensors&)> function, const Tensors& inputs);
Tensor checkpoint(std::function<Tensor(const Tensor&)> function, const Tensor& input);

// Does backward run a checkpoint's function again, on this thread, right now?
bool recomputing();

}  // namespace lockstep
#pragma GCC visibility pop
