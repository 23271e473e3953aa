// A replacement like cuda_runtime.h: the toolkit's 16-bit float, with the conversions of the CPU's kernels.
#pragma once

#include <cstdint>

#include "src/core/base/half.h"

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names.
struct __half {
  std::uint16_t bits;
};
inline float __half2float(__half value) { return lockstep::widen(lockstep::Float16{value.bits}); }
inline __half __float2half_rn(float value) { return {lockstep::narrow_float16(value).bits}; }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
