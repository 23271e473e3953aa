// The families of kernels that compress buckets for comm hooks: see core/kernel_families.h. By the conventions of
// core/operators.def; memory is aligned to an element. All give the same bits on every device, but for those of a NaN,
// and for sums over a matrix (PowerSgdKernels says which).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/host_device.h"
#include "lockstep/core/kernels.h"

#pragma GCC visibility push(default)
namespace lockstep::hooks {

// `slices` slices, one behind the other, each of `slice_blocks` float32 scales and behind them as many blocks of
// `block` int8, which is a multiple of 4. Of `count` values: block after block, slice after slice; behind the last one
// there are zeros.
struct Int8Slices {
  std::int64_t slices = 1, slice_blocks = 0, block = 0, count = 0;

  LOCKSTEP_HOST_DEVICE std::int64_t slice_values() const { return slice_blocks * block; }
  LOCKSTEP_HOST_DEVICE std::int64_t slice_bytes() const {
    return slice_blocks * (static_cast<std::int64_t>(sizeof(float)) + block);
  }
};

// Slices begin at multiples of 4 bytes.
struct Int8Kernels {
  static constexpr const char* kFamily = "int8";

  // A block's scale is its largest magnitude / 127, each value the nearest multiple of it, ties to even. With a value
  // that is not finite the scale is NaN and what is not 0 is 1; below 1e-36 all are 0.
  void (*quantise)(const Int8Slices& of, const float* values, std::byte* slices, Stream&);
  void (*expand)(const Int8Slices& of, const std::byte* slices, float* values, Stream&);
  // average (slice_values()): of all slices, added in their order, each times 1 / slices.
  void (*average)(const Int8Slices& of, const std::byte* slices, float* average, Stream&);
};

inline constexpr std::int64_t kMostMatrixRank = 256;

// A matrix M (rows, columns) and its factors, which lie transposed: P (rank, rows), Q (rank, columns). rank <=
// kMostMatrixRank.
struct PowerSgdMatrix {
  std::int64_t rows = 0, columns = 0, rank = 0;
};

// Row j of Q is drawn from Philox's stream `stream` + j, in [-1, 1).
struct PowerSgdRandom {
  std::uint64_t seed = 0, stream = 0;
};

struct PowerSgdKernels {
  static constexpr const char* kFamily = "power_sgd";

  // Rows of q that are zero, or with `all` each row, are drawn.
  void (*refill)(const PowerSgdMatrix& of, const PowerSgdRandom& random, bool all, float* q, Stream&);
  // P = M Q, and Q = M^T P: in an order of the device's own, which may differ between unlike ones.
  void (*multiply)(const PowerSgdMatrix& of, const float* m, const float* q, float* p, Stream&);
  void (*multiply_transposed)(const PowerSgdMatrix& of, const float* m, const float* p, float* q, Stream&);
  // Rows of p become orthonormal, by Gram and Schmidt's method, twice each; those that depend on others become zero.
  // All do where one value of p is not finite; *is_finite says whether none was. In an order that the extents alone
  // decide: equal p, the same bits, on all devices of a kind.
  void (*orthonormalise)(const PowerSgdMatrix& of, float* p, std::int32_t* is_finite, Stream&);
  // error = M - P Q^T, M = P Q^T, kept_q = q; where *is_finite is 0: M is NaN, error and kept_q are 0. `error` may be
  // null.
  void (*expand)(const PowerSgdMatrix& of, const float* p, const float* q, const std::int32_t* is_finite, float* m,
                 float* error, float* kept_q, Stream&);
};

// A parameter's part of a bucket, of which the `kept` largest magnitudes are sent.
struct TopKPart {
  std::int64_t offset = 0, count = 0, kept = 0;  // elements; count < 2^31
  float* error = nullptr;                        // (count): what was not sent; null: it is forgotten
};

// Of each rank: `kept` places in a bucket of `count` values, behind them as many values.
struct TopKMessages {
  std::int64_t ranks = 1, kept = 0, count = 0;
};

struct TopKKernels {
  static constexpr const char* kFamily = "top_k";

  // Of each part: values += error; its largest magnitudes go to `places` (in the bucket, ascending) and `chosen`, part
  // after part, NaN above all, of equal ones the first; error = the values that are not sent, 0 for those that are or
  // are not finite.
  void (*select)(std::span<const TopKPart> parts, float* values, std::uint32_t* places, float* chosen, Stream&);
  // values = the mean of all messages, added in their order.
  void (*expand)(const TopKMessages& of, const std::byte* messages, float* values, Stream&);
};

}  // namespace lockstep::hooks
#pragma GCC visibility pop
