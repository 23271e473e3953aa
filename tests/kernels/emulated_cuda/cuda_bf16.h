// A replacement like cuda_runtime.h: the toolkit's bfloat16, with the conversions of the CPU's kernels.
#pragma once

#include <cstdint>

#include "src/core/base/half.h"

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): CUDA's names.
struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) { return lockstep::widen(lockstep::BFloat16{value.bits}); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {lockstep::narrow_bfloat16(value).bits}; }
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
