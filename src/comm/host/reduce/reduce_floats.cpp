#include "src/comm/host/reduce/reduce_loops.h"

namespace lockstep::host {

LOCKSTEP_CPU_DISPATCH(void, reduce_floats, (const Reduction& job), (job), {
  switch (job.dtype) {
    case DType::kFloat32: return reduce_op<float>(job);
    case DType::kFloat64: return reduce_op<double>(job);
    case DType::kFloat16: return reduce_op<Float16>(job);
    case DType::kBFloat16: return reduce_op<BFloat16>(job);
    default: return;  // handled by reduce_integers.cpp
  }
})

}  // namespace lockstep::host
