// The server of each piece of a parameter, and its position in the messages.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/train/parameter_server.h"

namespace lockstep::train {

// A range of the floats of all parameters, or of all gradients.
struct FloatRange {
  std::int64_t begin = 0, count = 0;
};

struct PlacedPiece : ParameterPiece {
  bool is_whole = true;   // the parameter has no other pieces
  std::int64_t at = 0;    // its first float in a message of all floats
  std::int64_t flag = 0;  // the number of the float that is 1 if the parameter has a gradient
};

// All pieces in one piece of memory, server by server: each server's range is one message, and has its pieces in the
// order of the model. Pieces begin on cache lines; the few floats between them are sent, too. After the last one there
// is a flag for each piece, which is 1 in a message of gradients if the parameter has a gradient.
struct ShardLayout {
  std::vector<PlacedPiece> pieces;  // in the order of the model
  std::vector<FloatRange> servers;  // by server
  std::int64_t total = 0;
};

// Pure. Throws what shard_pieces() throws.
ShardLayout lay_out_shards(const std::vector<NamedTensor>& parameters, int servers,
                           const ParameterServerOptions& options);

// Moves the parameter, with its value, into `memory` at `begin`.
void move_into(const Tensor& memory, std::int64_t begin, const Tensor& parameter);

}  // namespace lockstep::train
