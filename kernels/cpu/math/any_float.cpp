// float16 and bfloat16 to float and back, as vector loops.
#include <cstring>

#include "kernels/cpu/math/any_float.h"
#include "lockstep/core/cpu_dispatch.h"
#include "lockstep/core/error.h"
#include "src/core/base/half.h"

namespace lockstep {

namespace {

LOCKSTEP_CPU_DISPATCH(void, widen_bfloat16, (const BFloat16* in, float* out, std::int64_t count), (in, out, count), {
  for (std::int64_t i = 0; i < count; ++i) out[i] = lockstep::widen(in[i]);
})
LOCKSTEP_CPU_DISPATCH(void, widen_float16, (const Float16* in, float* out, std::int64_t count), (in, out, count), {
  for (std::int64_t i = 0; i < count; ++i) out[i] = lockstep::widen(in[i]);
})
LOCKSTEP_CPU_DISPATCH(void, to_bfloat16, (const float* in, BFloat16* out, std::int64_t count), (in, out, count), {
  for (std::int64_t i = 0; i < count; ++i) out[i] = narrow_bfloat16(in[i]);
})
LOCKSTEP_CPU_DISPATCH(void, to_float16, (const float* in, Float16* out, std::int64_t count), (in, out, count), {
  for (std::int64_t i = 0; i < count; ++i) out[i] = narrow_float16(in[i]);
})

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
    widen_bfloat16(static_cast<const BFloat16*>(in), out, count);
  else
    widen_float16(static_cast<const Float16*>(in), out, count);
}

void narrow(DType type, const float* in, void* out, std::int64_t count) {
  if (count == 0) return;
  if (type == DType::kFloat32) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  check_type(type);
  if (type == DType::kBFloat16)
    to_bfloat16(in, static_cast<BFloat16*>(out), count);
  else
    to_float16(in, static_cast<Float16*>(out), count);
}

}  // namespace lockstep
