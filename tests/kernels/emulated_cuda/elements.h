// Common parts of the replacements of cuBLASLt and cuDNN: elements of their types, and their workspace.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lockstep/core/dtype.h"
#include "src/core/base/half.h"

namespace emulated_cuda {

constexpr std::size_t kWorkspace = 1000;  // written up to its last byte, so that a sanitizer notices if it is too small

// Reads float32, float16 or bfloat16.
inline float read_element(lockstep::DType type, const void* data, std::size_t i) {
  if (type == lockstep::DType::kFloat32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == lockstep::DType::kFloat16 ? lockstep::widen(lockstep::Float16{bits})
                                           : lockstep::widen(lockstep::BFloat16{bits});
}
inline void write_element(lockstep::DType type, void* data, std::size_t i, float value) {
  if (type == lockstep::DType::kFloat32)
    static_cast<float*>(data)[i] = value;
  else
    static_cast<std::uint16_t*>(data)[i] = type == lockstep::DType::kFloat16 ? lockstep::narrow_float16(value).bits
                                                                             : lockstep::narrow_bfloat16(value).bits;
}
// TF32 keeps 10 bits of the fraction.
inline float round_to_tf32(float value) {
  return std::isfinite(value) ? std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & ~0x1fffU) : value;
}

}  // namespace emulated_cuda
