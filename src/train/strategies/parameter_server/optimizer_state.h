// An optimizer's state between a server, which has some parameters or rows of them, and a worker, which has all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::train {

// The elements of a parameter of the optimizer whose state is sent. The peer's parameter has the same name.
struct StateRange {
  std::string parameter;
  std::int64_t begin = 0, count = 0;
};

// The learning rate, the state of these elements, and the counts of these parameters' steps, as a message.
std::string pack_state(optim::Optimizer& optimizer, const std::vector<StateRange>& ranges);
// Takes them over from the peer's message. Throws InvalidArgument, before any change, if the peer's optimizer has
// another kind or other state: Training::optimizer() must make the same for the parameters of each server and for all.
void unpack_state(optim::Optimizer& optimizer, const std::vector<StateRange>& ranges, const std::string& message);

}  // namespace lockstep::train
