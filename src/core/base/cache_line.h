// The unit in which the processor moves memory between its caches.
#pragma once

#include <cstddef>

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;  // bytes

}  // namespace lockstep
