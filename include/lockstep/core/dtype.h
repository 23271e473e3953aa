// Element types of buffers, tensors and collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/version.h"

#pragma GCC visibility push(default)
namespace lockstep {

enum class DType : std::uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16, kInt8, kUInt8, kInt32, kInt64 };
inline constexpr int kDTypes = 8;

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kInt8:
    case DType::kUInt8: return 1;
  }
  return 0;
}

// "float32", "int64", ...: for messages, tables and flags.
constexpr std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"float32", "float64", "float16", "bfloat16",
                                         "int8",    "uint8",   "int32",   "int64"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < 8 ? kNames[index] : "invalid";
}

template <typename T> inline constexpr DType kDTypeOf = [] {
  static_assert(sizeof(T) == 0, "no DType for this C++ type");
  return DType::kFloat32;
}();
template <> inline constexpr DType kDTypeOf<float> = DType::kFloat32;
template <> inline constexpr DType kDTypeOf<double> = DType::kFloat64;
template <> inline constexpr DType kDTypeOf<std::int8_t> = DType::kInt8;
template <> inline constexpr DType kDTypeOf<std::uint8_t> = DType::kUInt8;
template <> inline constexpr DType kDTypeOf<std::int32_t> = DType::kInt32;
template <> inline constexpr DType kDTypeOf<std::int64_t> = DType::kInt64;

}  // namespace lockstep
#pragma GCC visibility pop
