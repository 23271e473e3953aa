// A training run whose loss is no number any more ends at once, on all ranks, and says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct CheckFiniteOptions {
  std::string name = "loss";                      // in the message: "validation loss", "loss of the critic"
  std::shared_ptr<ProcessGroup> group = nullptr;  // null: the thread's default group; none: a job of one
};

// Returns the value of a one-element tensor of a floating type; waits for the device. Where it is NaN or infinite it
// throws Error with name, rank, step and value, after ProcessGroup::abort(): the other ranks' calls under way, or their
// next ones, throw PeerLost with the same text. So no rank waits for one that has stopped, and none needs to call this.
// To be called before backward(): no collective is then begun. A rank whose values are finite asks no other one.
// InvalidArgument: another count or type, or a step that is recorded as a graph.
//
//   const ls::Tensor loss = nn::cross_entropy(ddp(images), labels);
//   ls::check_finite(loss, step);
//   loss.backward();
float check_finite(const Tensor& loss, std::int64_t step, const CheckFiniteOptions& options = {});

}  // namespace lockstep
#pragma GCC visibility pop
