// What one rank alone throws, told to the others.
#pragma once

#include <exception>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "src/core/text.h"

namespace lockstep {

// Returns call(). What it throws ends the group (null: a job of one; a group of one goes on), so that the other ranks learn the reason from
// the call that they are in, or from their next one, instead of waiting for this rank until their deadline.
template <typename Call>
auto or_end_group(ProcessGroup* group, const Call& call) {
  try {
    return call();
  } catch (const PeerLost&) {
    throw;         // it is over
  } catch (...) {  // of any type
    if (group != nullptr && group->world_size() > 1) group->abort(exception_text(std::current_exception()));
    throw;
  }
}

}  // namespace lockstep
