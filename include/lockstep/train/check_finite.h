// Ends a training run on all ranks as soon as its loss is NaN or infinite.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct CheckFiniteOptions {
  std::string name = "loss";                      // used in the message: "validation loss", "loss of the critic"
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; without one: a job of one rank
};

// Returns the value of a one-element tensor of a floating type; blocks until the device is done. If it is NaN or
// infinite, calls ProcessGroup::abort() and throws Error with name, rank, step and value. The other ranks' current or
// next calls then throw PeerLost with the same text, so no rank waits for one that has stopped. Call it before
// backward(), when no collective has begun. Finite values cause no communication, and not every rank needs to call it.
// Throws InvalidArgument for another count or type, and while a step is recorded as a graph.
//
// On a GPU a check in each step costs the overlap of host and device. A loop may instead add up the losses on the device,
// and check the sum every so many steps and before each checkpoint, as LossCheck in examples/lib does; the message then
// names the step of the check.
//
//   const ls::Tensor loss = nn::cross_entropy(ddp(images), labels);
//   ls::train::check_finite(loss, step);
//   loss.backward();
float check_finite(const Tensor& loss, std::int64_t step, const CheckFiniteOptions& options = {});

}  // namespace lockstep::train
#pragma GCC visibility pop
