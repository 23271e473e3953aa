// Runs what Work::then() has queued: a computation, or a follower, which makes one call of its group by the number that
// was taken for it.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/operation.h"
#include "lockstep/core/device.h"
#include "src/comm/call/group_error.h"

namespace lockstep {

// The continuation that this thread is running.
struct RunningContinuation {
  const void* group = nullptr;
  std::uint64_t number = 0;  // of the call that it makes
  FlightNote flight = {};    // of that call
  bool makes_call = false;
  bool has_made_it = false;
};
RunningContinuation* running_continuation();  // null: none

// "the computation behind call #41", "the follower #42"
std::string describe_chained(const Operation& operation);

// Returns the Work of the call that the continuation made; done already where it makes none. Throws what it throws, and
// InvalidArgument when it was to make a call and made none.
Work run_chained(const Operation& operation, Stream& stream);

// The same in a world of one, whose group is over where the continuation throws.
Work run_chained_or_end(const Operation& operation, Stream& stream, LocalGroupError& group_error);

}  // namespace lockstep
