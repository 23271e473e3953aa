// The key under which a store that lockrun serves has what only its attempt of the job has (LOCKSTEP_ATTEMPT).
#pragma once

namespace lockstep {

inline constexpr const char* kAttemptKey = "attempt";

}  // namespace lockstep
