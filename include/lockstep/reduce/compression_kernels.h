// The kernel families that compress buckets for comm hooks: see core/kernel_families.h. The conventions of
// core/operators.def apply, and memory is aligned to an element. Results have the same bits on every device, except NaN
// payloads and sums over a matrix (see PowerSgdKernels).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/host_device.h"
#include "lockstep/core/kernels.h"

#pragma GCC visibility push(default)
namespace lockstep::hooks {

// The layout of `count` values in `slices` slices, one after the other. A slice has `slice_blocks` float32 scales,
// followed by as many blocks of `block` int8 values (a multiple of 4). Values fill block after block and slice after
// slice; the rest is zero.
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

  // A block's scale is its largest magnitude / 127, and each value becomes the nearest multiple of it, ties to even. If
  // a value is not finite, the scale is NaN and nonzero values become 1. Below 1e-36 all values become 0.
  void (*quantise)(const Int8Slices& of, const float* values, std::byte* slices, Stream&);
  void (*expand)(const Int8Slices& of, const std::byte* slices, float* values, Stream&);
  // average (slice_values()): the mean of all slices, added in order and multiplied by 1 / slices.
  void (*average)(const Int8Slices& of, const std::byte* slices, float* average, Stream&);
};

inline constexpr std::int64_t kMostMatrixRank = 256;

// A matrix M (rows, columns). Its factors are stored transposed: P (rank, rows), Q (rank, columns). rank <=
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

  // Draws the rows of q that are zero, or all rows if `all`.
  void (*refill)(const PowerSgdMatrix& of, const PowerSgdRandom& random, bool all, float* q, Stream&);
  // P = M Q and Q = M^T P. The order of summation may differ between kinds of devices.
  void (*multiply)(const PowerSgdMatrix& of, const float* m, const float* q, float* p, Stream&);
  void (*multiply_transposed)(const PowerSgdMatrix& of, const float* m, const float* p, float* q, Stream&);
  // Makes the rows of p orthonormal by the Gram-Schmidt method, twice for each row; rows that depend on others become
  // zero. If a value of p is not finite, all rows become zero and *is_finite becomes 0, else 1. The order of operations
  // depends only on the extents: equal p gives the same bits on all devices of a kind.
  void (*orthonormalise)(const PowerSgdMatrix& of, float* p, std::int32_t* is_finite, Stream&);
  // error = M - P Q^T, M = P Q^T, kept_q = q. If *is_finite is 0: M is NaN, error and kept_q are 0. `error` may be
  // null.
  void (*expand)(const PowerSgdMatrix& of, const float* p, const float* q, const std::int32_t* is_finite, float* m,
                 float* error, float* kept_q, Stream&);
};

// A parameter's part of a bucket; its `kept` largest magnitudes are sent.
struct TopKPart {
  std::int64_t offset = 0, count = 0, kept = 0;  // elements; count < 2^31
  float* error = nullptr;                        // (count): the unsent remainder; null: it is dropped
};

// The messages of all senders: for each sender `kept` positions in a bucket of `count` values, then as many values.
struct TopKMessages {
  std::int64_t senders = 1, kept = 0, count = 0;
};

struct TopKKernels {
  static constexpr const char* kFamily = "top_k";

  // For each part: values += error; its largest magnitudes go to `places` (positions in the bucket, ascending) and
  // `chosen`, part after part. NaN counts as largest, and of equal magnitudes the first. Then error = the values that
  // are not sent, and 0 for those that are sent or not finite.
  void (*select)(std::span<const TopKPart> parts, float* values, std::uint32_t* places, float* chosen, Stream&);
  // values = the mean of all messages, added in order.
  void (*expand)(const TopKMessages& of, const std::byte* messages, float* values, Stream&);
};

}  // namespace lockstep::hooks
#pragma GCC visibility pop
