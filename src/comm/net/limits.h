// How large a job may be, and a port.
#pragma once

namespace lockstep {

inline constexpr long kMaxRanks = 4096;  // of a job: each has a connection to the store, which takes no more
inline constexpr long kMaxPort = 65535;

}  // namespace lockstep
