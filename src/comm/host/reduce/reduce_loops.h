// The loops of reduce(). Two files compile them, each for some types, since every loop is compiled three times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/core/cpu_dispatch.h"
#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/core/base/half.h"
#include "src/core/base/processor.h"

namespace lockstep::host {

void reduce_floats(const Reduction& job);    // reduce_floats.cpp
void reduce_integers(const Reduction& job);  // reduce_integers.cpp

// The compiler chooses which of two NaNs a sum returns, differently in each of the loops below, and ranks may take
// different loops. So a NaN result always gets these bits.
template <typename T> LOCKSTEP_HALF_INLINE T with_one_nan(T value) {
  return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
}

// The same for the bits of a 16-bit float: values above its infinity are NaN.
template <std::uint16_t kInfinity, std::uint16_t kNan>
LOCKSTEP_HALF_INLINE std::uint16_t with_one_nan(std::uint16_t bits) {
  return (bits & 0x7fff) > kInfinity ? kNan : bits;
}

// A type's form in memory, and the type in which it is summed. 16-bit floats are read and written as integers, since
// GCC does not vectorize a loop that passes a struct.
template <typename T> struct Element {
  using Sum = T;
  using Stored = T;
  static LOCKSTEP_HALF_INLINE Sum load(T value) { return value; }
  static LOCKSTEP_HALF_INLINE T store(Sum value) { return with_one_nan(value); }
};
// Integers wrap, as in MPI and NCCL; in C++ only unsigned ones may.
template <typename T>
requires std::is_integral_v<T>
struct Element<T> {
  using Sum = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  using Stored = T;
  static LOCKSTEP_HALF_INLINE Sum load(T value) { return static_cast<Sum>(value); }
  static LOCKSTEP_HALF_INLINE T store(Sum value) { return static_cast<T>(value); }
};
template <> struct Element<BFloat16> {
  using Sum = float;
  using Stored = std::uint16_t;
  static LOCKSTEP_HALF_INLINE float load(Stored bits) { return widen(BFloat16{bits}); }
  static LOCKSTEP_HALF_INLINE Stored store(float value) {
    return with_one_nan<0x7f80, 0x7fc0>(narrow_bfloat16(value).bits);
  }
};
template <> struct Element<Float16> {
  using Sum = float;
  using Stored = std::uint16_t;
  static LOCKSTEP_HALF_INLINE float load(Stored bits) { return widen(Float16{bits}); }
  static LOCKSTEP_HALF_INLINE Stored store(float value) {
    return with_one_nan<0x7c00, 0x7e00>(narrow_float16(value).bits);
  }
};

template <typename T> using Sum = typename Element<T>::Sum;
template <typename T> using Stored = typename Element<T>::Stored;
// The type for comparisons: an int8 of -1 is less than 1 although it is summed as an unsigned number.
template <typename T> using Ordered = std::conditional_t<std::is_integral_v<T>, T, Sum<T>>;

template <typename T, ReduceOp kOp> LOCKSTEP_HALF_INLINE Sum<T> combine(Sum<T> a, Sum<T> b) {
  const auto left = static_cast<Ordered<T>>(a), right = static_cast<Ordered<T>>(b);
  if constexpr (kOp == ReduceOp::kProduct) return a * b;
  if constexpr (kOp == ReduceOp::kMin) return ((right < left) | (right != right)) ? b : a;
  if constexpr (kOp == ReduceOp::kMax) return ((right > left) | (right != right)) ? b : a;
  if constexpr (kOp == ReduceOp::kBitAnd) return a & b;
  if constexpr (kOp == ReduceOp::kBitOr) return a | b;
  if constexpr (kOp == ReduceOp::kBitXor) return a ^ b;
  return a + b;
}

constexpr int kTreeLevels = 16;

template <typename T> LOCKSTEP_HALF_INLINE Stored<T> at(const std::byte* data, std::size_t i) {
  return reinterpret_cast<const Stored<T>*>(data)[i];
}

// Every value is read once and every result written once, so memory bandwidth is the limit. The pointers are copied to
// locals, so that the compiler knows that the stores do not change them.
template <typename T, ReduceOp kOp, int kInputs, int kOutputs>
LOCKSTEP_HALF_INLINE void fused(const Reduction& job, Sum<T> scale) {
  const std::byte* in[kInputs];
  std::byte* out[kOutputs];
  for (int k = 0; k < kInputs; ++k) in[k] = job.in[k];
  for (int k = 0; k < kOutputs; ++k) out[k] = job.out[k];
  const std::size_t count = job.count;
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (std::size_t i = 0; i < count; ++i) {
    Sum<T> sum = Element<T>::load(at<T>(in[0], i));
    if constexpr (kInputs > 1) sum = combine<T, kOp>(sum, Element<T>::load(at<T>(in[1], i)));
    if constexpr (kInputs > 2) sum = combine<T, kOp>(sum, Element<T>::load(at<T>(in[2], i)));
    if constexpr (kInputs > 3) sum = combine<T, kOp>(sum, Element<T>::load(at<T>(in[3], i)));
    if constexpr (kOp == ReduceOp::kAvg) sum = sum * scale;
    const Stored<T> result = Element<T>::store(sum);
    reinterpret_cast<Stored<T>*>(out[0])[i] = result;
    if constexpr (kOutputs > 1) reinterpret_cast<Stored<T>*>(out[1])[i] = result;
    if constexpr (kOutputs > 2) reinterpret_cast<Stored<T>*>(out[2])[i] = result;
    if constexpr (kOutputs > 3) reinterpret_cast<Stored<T>*>(out[3])[i] = result;
  }
}

// For any number of inputs: the sums are accumulated in a tile that stays in the L1 cache.
template <typename T, ReduceOp kOp> LOCKSTEP_HALF_INLINE void tiled(const Reduction& job, Sum<T> scale) {
  constexpr std::size_t kTile = 2048;
  alignas(kCacheLine) Sum<T> sums[kTile];
  alignas(kCacheLine) Stored<T> results[kTile];
  for (std::size_t begin = 0; begin < job.count; begin += kTile) {
    const std::size_t count = std::min(kTile, job.count - begin);
    const Stored<T>* first = reinterpret_cast<const Stored<T>*>(job.in[0]) + begin;
    for (std::size_t i = 0; i < count; ++i) sums[i] = Element<T>::load(first[i]);
    for (int k = 1; k < job.inputs; ++k) {
      const Stored<T>* values = reinterpret_cast<const Stored<T>*>(job.in[k]) + begin;
      LOCKSTEP_INDEPENDENT_ITERATIONS
      for (std::size_t i = 0; i < count; ++i) sums[i] = combine<T, kOp>(sums[i], Element<T>::load(values[i]));
    }
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (std::size_t i = 0; i < count; ++i)
      results[i] = Element<T>::store(kOp == ReduceOp::kAvg ? static_cast<Sum<T>>(sums[i] * scale) : sums[i]);
    for (int k = 0; k < job.outputs; ++k) {
      Stored<T>* out = reinterpret_cast<Stored<T>*>(job.out[k]) + begin;
      for (std::size_t i = 0; i < count; ++i) out[i] = results[i];
    }
  }
}

// A binary counter of tiles: level k holds the sum of 2^k neighbours until that of the next 2^k is ready.
template <typename T, ReduceOp kOp> LOCKSTEP_HALF_INLINE void tree(const Reduction& job, Sum<T> scale) {
  constexpr std::size_t kTile = 256;
  alignas(kCacheLine) Sum<T> levels[kTreeLevels][kTile];
  for (std::size_t begin = 0; begin < job.count; begin += kTile) {
    const std::size_t count = std::min(kTile, job.count - begin);
    int level = 0;
    for (int k = 0; k < job.inputs; ++k) {
      const Stored<T>* values = reinterpret_cast<const Stored<T>*>(job.in[k]) + begin;
      // The trailing ones of k are the levels that are full; their sums and this value are added.
      Sum<T>* const loaded = levels[level];
      for (std::size_t i = 0; i < count; ++i) loaded[i] = Element<T>::load(values[i]);
      ++level;
      for (int ones = k; (ones & 1) != 0; ones >>= 1) {
        --level;
        const Sum<T>* const right = levels[level];
        Sum<T>* const left = levels[level - 1];
        LOCKSTEP_INDEPENDENT_ITERATIONS
        for (std::size_t i = 0; i < count; ++i) left[i] = combine<T, kOp>(left[i], right[i]);
      }
    }
    for (; level > 1; --level) {
      const Sum<T>* const right = levels[level - 1];
      Sum<T>* const left = levels[level - 2];
      LOCKSTEP_INDEPENDENT_ITERATIONS
      for (std::size_t i = 0; i < count; ++i) left[i] = combine<T, kOp>(left[i], right[i]);
    }
    for (int k = 0; k < job.outputs; ++k) {
      Stored<T>* out = reinterpret_cast<Stored<T>*>(job.out[k]) + begin;
      LOCKSTEP_INDEPENDENT_ITERATIONS
      for (std::size_t i = 0; i < count; ++i)
        out[i] = Element<T>::store(kOp == ReduceOp::kAvg ? static_cast<Sum<T>>(levels[0][i] * scale) : levels[0][i]);
    }
  }
}

// Integers wrap, and a minimum is the same in any order: only rounded results depend on the order.
template <typename T, ReduceOp kOp> inline constexpr bool kDependsOnOrder = std::is_floating_point_v<Sum<T>> &&
                                                                            (kOp != ReduceOp::kMin) &&
                                                                            (kOp != ReduceOp::kMax);

// Special loops for frequent shapes: sums of gradients, few ranks, into one, two or all buffers.
template <typename T, ReduceOp kOp>
inline constexpr bool kHasFusedLoop = (std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                       std::is_same_v<T, BFloat16>)&&(kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg);

template <typename T, ReduceOp kOp> LOCKSTEP_HALF_INLINE void reduce_shape(const Reduction& job) {
  Sum<T> scale = 1;
  if constexpr (std::is_floating_point_v<Sum<T>>)
    scale /= static_cast<Sum<T>>(job.divisor != 0 ? job.divisor : job.inputs);
  if constexpr (kDependsOnOrder<T, kOp>)
    if (job.order == ReduceOrder::kTree && job.inputs > 3)
      return tree<T, kOp>(job, scale);  // up to three inputs this is rank order
  if constexpr (kHasFusedLoop<T, kOp>) {
    switch (job.inputs * 8 + job.outputs) {
      case 2 * 8 + 1: return fused<T, kOp, 2, 1>(job, scale);
      case 2 * 8 + 2: return fused<T, kOp, 2, 2>(job, scale);
      case 3 * 8 + 1: return fused<T, kOp, 3, 1>(job, scale);
      case 3 * 8 + 2: return fused<T, kOp, 3, 2>(job, scale);
      case 3 * 8 + 3: return fused<T, kOp, 3, 3>(job, scale);
      case 4 * 8 + 1: return fused<T, kOp, 4, 1>(job, scale);
      case 4 * 8 + 2: return fused<T, kOp, 4, 2>(job, scale);
      case 4 * 8 + 4: return fused<T, kOp, 4, 4>(job, scale);
      default: break;
    }
  }
  tiled<T, kOp>(job, scale);
}

template <typename T> LOCKSTEP_HALF_INLINE void reduce_op(const Reduction& job) {
  switch (job.op) {
    case ReduceOp::kAvg:
      if constexpr (!std::is_integral_v<T>) return reduce_shape<T, ReduceOp::kAvg>(job);
      [[fallthrough]];          // the group refuses averages of integers
    case ReduceOp::kPremulSum:  // the values are already multiplied
    case ReduceOp::kSum: return reduce_shape<T, ReduceOp::kSum>(job);
    case ReduceOp::kProduct: return reduce_shape<T, ReduceOp::kProduct>(job);
    case ReduceOp::kMin: return reduce_shape<T, ReduceOp::kMin>(job);
    case ReduceOp::kMax: return reduce_shape<T, ReduceOp::kMax>(job);
    case ReduceOp::kBitAnd:
      if constexpr (std::is_integral_v<T>) return reduce_shape<T, ReduceOp::kBitAnd>(job);
      return;  // the group refuses bitwise operations on floating point
    case ReduceOp::kBitOr:
      if constexpr (std::is_integral_v<T>) return reduce_shape<T, ReduceOp::kBitOr>(job);
      return;
    case ReduceOp::kBitXor:
      if constexpr (std::is_integral_v<T>) return reduce_shape<T, ReduceOp::kBitXor>(job);
      return;
  }
}

}  // namespace lockstep::host
