// The key under which a store that lockrun serves has the number of the attempt, if the job may restart.
#pragma once

namespace lockstep {

inline constexpr const char* kAttemptKey = "attempt";

}  // namespace lockstep
