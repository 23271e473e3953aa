// What the processor moves between its caches as one.
#pragma once

#include <cstddef>

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;  // bytes

}  // namespace lockstep
