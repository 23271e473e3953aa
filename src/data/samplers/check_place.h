// Checks a rank's place that a caller passes to a sampler.
#pragma once

#include "lockstep/core/error.h"
#include "lockstep/core/place.h"

namespace lockstep::data {

// Throws InvalidArgument, beginning with `who`, for a rank outside the world.
inline void check_place(const char* who, const Place& place) {
  if (place.world_size < 1)
    throw InvalidArgument("{}: the world has {} ranks, but at least 1 is needed: use group->place()", who,
                          place.world_size);
  if (place.rank < 0 || place.rank >= place.world_size)
    throw InvalidArgument("{}: rank {} does not exist in a world of {}: ranks count from 0 to {}: use group->place()",
                          who, place.rank, place.world_size, place.world_size - 1);
}

}  // namespace lockstep::data
