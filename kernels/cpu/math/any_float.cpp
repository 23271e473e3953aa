// float16 and bfloat16 to float and back, as vector loops.
#include <cstring>

#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/simd/by_isa.h"
#include "kernels/cpu/simd/vector.h"
#include "lockstep/core/error.h"
#include "src/core/base/half.h"

#define LOCKSTEP_LOOPS "kernels/cpu/math/any_float.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep {

namespace {

void check_type(DType type) {
  if (!is_half(type)) throw InvalidArgument("convert: float32, float16 or bfloat16 expected, got {}", name_of(type));
}

}  // namespace

void widen(DType type, const void* in, float* out, std::int64_t count) {
  if (count == 0) return;
  if (type == DType::kFloat32) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  check_type(type);
  if (type == DType::kBFloat16)
    LOCKSTEP_BY_ISA(widen_bfloat16)(static_cast<const BFloat16*>(in), out, count);
  else
    LOCKSTEP_BY_ISA(widen_float16)(static_cast<const Float16*>(in), out, count);
}

void narrow(DType type, const float* in, void* out, std::int64_t count) {
  if (count == 0) return;
  if (type == DType::kFloat32) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  check_type(type);
  if (type == DType::kBFloat16)
    LOCKSTEP_BY_ISA(to_bfloat16)(in, static_cast<BFloat16*>(out), count);
  else
    LOCKSTEP_BY_ISA(to_float16)(in, static_cast<Float16*>(out), count);
}

}  // namespace lockstep
