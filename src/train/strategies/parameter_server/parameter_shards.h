// The server of each parameter, and the position of the parameter in the messages.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/train/parameter_server.h"

namespace lockstep::train {

// A range of the floats of all parameters, or of all gradients.
struct FloatRange {
  std::int64_t begin = 0, count = 0;
};

// All parameters in one piece of memory, server by server: each server's range is one message, and has its parameters
// in the order of the model. Parameters begin on cache lines; the few floats between them are sent, too. After the last
// one there is a flag for each parameter, which is 1 in a message of gradients if the parameter has a gradient.
struct ShardLayout {
  std::vector<int> server_of;          // by parameter
  std::vector<FloatRange> parameters;  // by parameter
  std::vector<std::int64_t> flags;     // by parameter: the number of the float
  std::vector<FloatRange> servers;     // by server
  std::int64_t total = 0;
};

// Pure. Throws what shard_parameters() throws.
ShardLayout lay_out_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

// Moves the parameter, with its value, into `memory` at `begin`.
void move_into(const Tensor& memory, std::int64_t begin, const Tensor& parameter);

}  // namespace lockstep::train
