// Which server holds which parameters, and where they stand in its messages.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/train/parameter_server.h"

namespace lockstep::train {

// A range of the floats of all parameters, or of all gradients.
struct FloatRange {
  std::int64_t begin = 0, count = 0;
};

// All parameters in one memory: server by server, each a range that travels as one message, and within it in the order
// of the model. Parameters begin on cache lines; the few floats between them travel along, and a flag for each behind
// the last: among gradients, 1 where the parameter has one.
struct ShardLayout {
  std::vector<int> server_of;          // by parameter
  std::vector<FloatRange> parameters;  // by parameter
  std::vector<std::int64_t> flags;     // by parameter: the number of the float
  std::vector<FloatRange> servers;     // by server
  std::int64_t total = 0;
};

// Pure. Throws what shard_parameters() throws.
ShardLayout lay_out_shards(const std::vector<NamedTensor>& parameters, int servers, Sharding sharding);

// The parameter lives in `memory` from now on, at `begin`; its value moves along.
void move_into(const Tensor& memory, std::int64_t begin, const Tensor& parameter);

}  // namespace lockstep::train
