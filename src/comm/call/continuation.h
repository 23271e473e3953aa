// Runs the continuations that Work::then() queues: a computation, or a follower, which makes one call of its group with
// the number that was reserved for it.
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
  std::uint64_t number = 0;  // number of the call that it makes
  FlightNote flight = {};    // of that call
  bool makes_call = false;
  bool has_made_it = false;
};
RunningContinuation* running_continuation();  // null: this thread runs none

// "the computation after call #41", "the follower #42"
std::string describe_chained(const Operation& operation);

// Returns the Work of the call that the continuation made, or a Work that is done if it makes none. Throws the
// continuation's error, and InvalidArgument if it should have made a call and did not.
Work run_chained(const Operation& operation, Stream& stream);

// The same in a world of one. If the continuation throws, the group ends.
Work run_chained_or_end(const Operation& operation, Stream& stream, LocalGroupError& group_error);

}  // namespace lockstep
