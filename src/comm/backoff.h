// How long a thread that waits for a peer stays awake.
#pragma once

#include <chrono>

namespace lockstep {

// Yielding, it answers within microseconds and whoever shares its core runs meanwhile; on a busy machine one yield may take all of this
// time. Then it sleeps.
inline constexpr auto kYieldFor = std::chrono::milliseconds(1);

}  // namespace lockstep
