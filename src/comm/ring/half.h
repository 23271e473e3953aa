// 16-bit floats under the names that the collectives use; see core/half.h.
#pragma once

#include "src/core/half.h"

#define LOCKSTEP_RING_INLINE LOCKSTEP_HALF_INLINE

namespace lockstep::ring {

using lockstep::BFloat16;
using lockstep::Float16;
using lockstep::narrow_bfloat16;
using lockstep::narrow_float16;
using lockstep::widen;

}  // namespace lockstep::ring
