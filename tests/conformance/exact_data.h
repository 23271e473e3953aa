// Data whose reductions are exact in every type: small integers, multiples of the number of ranks for averages.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/comm/operation.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {

// Pure arithmetic on the arguments, in which TSan can find nothing and would spend most of a test's time.
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): attributes have no other name.
#define LOCKSTEP_ARITHMETIC __attribute__((no_sanitize("thread")))

// TSan's build has one type of each kind, since the ranks' waits do not depend on the type. ASan's has all types, since
// their vectors end at different bytes, and an operation of each kind.
inline std::vector<DType> all_types() {
  if (kThreadSanitized) return {DType::kFloat32, DType::kBFloat16, DType::kInt8};
  return {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
          DType::kInt8,    DType::kUInt8,   DType::kInt32,   DType::kInt64};
}
inline std::vector<ReduceOp> all_ops() {
  if (kThreadSanitized) return {ReduceOp::kSum, ReduceOp::kAvg};
  if (kSanitized) return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kBitXor};
  return {ReduceOp::kSum, ReduceOp::kAvg,    ReduceOp::kProduct, ReduceOp::kMin,
          ReduceOp::kMax, ReduceOp::kBitAnd, ReduceOp::kBitOr,   ReduceOp::kBitXor};
}
inline const std::vector<DType> kAllTypes = all_types();
inline const std::vector<ReduceOp> kAllOps = all_ops();

// Counts that are divisible by nothing, of more bytes than a tile or a slice. They are smaller in instrumented code,
// which is slow.
inline constexpr std::size_t kLargeAndOddBytes = kSanitized ? 600011 : 1000003;
inline constexpr std::size_t kLargeAndOddFloats = kSanitized ? 150001 : 1000003;

inline bool is_integer(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kUInt8 || dtype == DType::kInt32 || dtype == DType::kInt64;
}

LOCKSTEP_ARITHMETIC inline bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}
inline bool is_defined(ReduceOp op, DType dtype) { return is_integer(dtype) ? op != ReduceOp::kAvg : !is_bitwise(op); }

// Rank r's value at i. Sums of seven ranks stay below 128, products at 8 or below.
LOCKSTEP_ARITHMETIC inline int value_at(int rank, int ranks, std::size_t i, DType dtype, ReduceOp op) {
  const auto k = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3 + i / 64) % 5);
  const bool is_unsigned = dtype == DType::kUInt8;
  if (is_bitwise(op)) return static_cast<int>((i * 37 + static_cast<std::size_t>(rank) * 91) % 128);
  if (op == ReduceOp::kProduct) return rank < 3 && k == 1 ? 2 : k == 3 && !is_unsigned ? -1 : 1;
  if (op == ReduceOp::kAvg) return ranks * (k - (is_unsigned ? 0 : 2));
  return is_unsigned ? k : 3 * (k - 2);
}

LOCKSTEP_ARITHMETIC inline int expected_at(int ranks, std::size_t i, DType dtype, ReduceOp op) {
  int result = value_at(0, ranks, i, dtype, op);
  for (int rank = 1; rank < ranks; ++rank) {
    const int value = value_at(rank, ranks, i, dtype, op);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPremulSum:
      case ReduceOp::kAvg: result += value; break;
      case ReduceOp::kProduct: result *= value; break;
      case ReduceOp::kMin: result = std::min(result, value); break;
      case ReduceOp::kMax: result = std::max(result, value); break;
      case ReduceOp::kBitAnd: result &= value; break;
      case ReduceOp::kBitOr: result |= value; break;
      case ReduceOp::kBitXor: result ^= value; break;
    }
  }
  return op == ReduceOp::kAvg ? result / ranks : result;
}

// Converts a small integer to binary16 by its definition: sign, exponent with bias 15, ten bits after the leading one.
LOCKSTEP_ARITHMETIC inline std::uint16_t half_of(int value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
  const auto fraction = static_cast<std::uint16_t>((mantissa * 2 - 1) * 1024);
  return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10) | fraction);
}

inline void store(std::byte* data, std::size_t i, DType dtype, int value) {
  const auto put = [&](auto typed) { std::memcpy(data + i * sizeof typed, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kFloat32: return put(static_cast<float>(value));
    case DType::kFloat64: return put(static_cast<double>(value));
    case DType::kFloat16: return put(half_of(value));
    case DType::kBFloat16:
      return put(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case DType::kInt8:
    case DType::kUInt8: return put(static_cast<std::int8_t>(value));
    case DType::kInt32: return put(static_cast<std::int32_t>(value));
    case DType::kInt64: return put(static_cast<std::int64_t>(value));
  }
}

// The value of a 16-bit type by its definition: a sign, an exponent, a fraction with a leading one.
inline double load_half(const std::byte* data, std::size_t i, DType dtype) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
  if (dtype == DType::kBFloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31;
  const double value = exponent == 0 ? std::ldexp(bits & 1023, -24) : std::ldexp((bits & 1023) + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

// The first element at which the bytes differ, or -1.
inline long first_difference(const std::byte* got, const std::byte* expected, std::size_t count, DType dtype) {
  const std::size_t element = size_of(dtype);
  if (count == 0 || std::memcmp(got, expected, count * element) == 0) return -1;
  for (std::size_t i = 0; i < count; ++i)
    if (std::memcmp(got + i * element, expected + i * element, element) != 0) return static_cast<long>(i);
  return -1;
}

}  // namespace lockstep::testing
