#include "src/comm/host/reduce/reduce_loops.h"

namespace lockstep::host {

LOCKSTEP_CPU_DISPATCH(void, reduce_integers, (const Reduction& job), (job), {
  switch (job.dtype) {
    case DType::kInt8: return reduce_op<std::int8_t>(job);
    case DType::kUInt8: return reduce_op<std::uint8_t>(job);
    case DType::kInt32: return reduce_op<std::int32_t>(job);
    case DType::kInt64: return reduce_op<std::int64_t>(job);
    default: return;  // handled by reduce_floats.cpp
  }
})

}  // namespace lockstep::host
