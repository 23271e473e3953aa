// Limits of a job's size, and of a port.
#pragma once

namespace lockstep {

inline constexpr long kMaxRanks = 4096;  // in a job: each has a connection to the store, which accepts no more
inline constexpr long kMaxPort = 65535;

}  // namespace lockstep
