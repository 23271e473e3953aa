// A rank's place among those that share samples out, as callers give it.
#pragma once

#include "lockstep/core/error.h"
#include "lockstep/core/place.h"

namespace lockstep::data {

// InvalidArgument, which `who` begins, for a rank that the world does not have.
inline void check_place(const char* who, const Place& place) {
  if (place.world_size < 1)
    throw InvalidArgument("{}: a world of {} ranks: at least 1 is needed; group->place() is a rank's own", who,
                          place.world_size);
  if (place.rank < 0 || place.rank >= place.world_size)
    throw InvalidArgument(
        "{}: rank {} does not exist in a world of {}: ranks count from 0 to {}; group->place() is a rank's own", who,
        place.rank, place.world_size, place.world_size - 1);
}

}  // namespace lockstep::data
