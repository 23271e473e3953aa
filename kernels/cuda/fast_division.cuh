// Division of indices by extents that the host knows. GPUs have no instruction for it: a 64-bit division is about a
// hundred instructions, which is more than the other work of most kernels that move elements. Below 2^31 it is a
// multiplication, an addition and a shift (Granlund and Montgomery 1994, "Division by Invariant Integers using
// Multiplication", section 4).
#pragma once

#include <bit>

#include "kernels/cuda/launch.cuh"

namespace lockstep::cuda {

using ShortIndex = std::int32_t;

template <typename Number> struct Divided { Number quotient, remainder; };

// `Number`, the type of the indices, is ShortIndex or Index. A divisor of 0, the extent of an empty array, which has no
// indices, is taken as 1.
template <typename Number> class Divisor;

// With l = ceil(log2 d) and m = floor(2^32 (2^l - d) / d) + 1, floor(i / d) = (i + floor(i m / 2^32)) >> l for all
// i < 2^32; that sum does not overflow below 2^31.
template <> class Divisor<ShortIndex> {
 public:
  Divisor() = default;
  explicit Divisor(Index divisor)
      : divisor_(static_cast<std::uint32_t>(std::max<Index>(divisor, 1))),
        shift_(static_cast<std::uint32_t>(std::bit_width(divisor_ - 1))),
        multiplier_(static_cast<std::uint32_t>(
            ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - divisor_)) / divisor_ + 1)) {}
  __device__ ShortIndex value() const { return static_cast<ShortIndex>(divisor_); }
  __device__ ShortIndex quotient(ShortIndex index) const {
    const auto i = static_cast<std::uint32_t>(index);
    const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * multiplier_ >> 32);
    return static_cast<ShortIndex>((i + high) >> shift_);
  }
  __device__ Divided<ShortIndex> divide(ShortIndex index) const {
    const ShortIndex by = quotient(index);
    return {by, index - by * value()};
  }

 private:
  std::uint32_t divisor_ = 1, shift_ = 0, multiplier_ = 1;
};

template <> class Divisor<Index> {
 public:
  Divisor() = default;
  explicit Divisor(Index divisor) : divisor_(std::max<Index>(divisor, 1)) {}
  __device__ Index value() const { return divisor_; }
  __device__ Index quotient(Index index) const { return index / divisor_; }
  __device__ Divided<Index> divide(Index index) const {
    const Index by = index / divisor_;
    return {by, index - by * divisor_};
  }

 private:
  Index divisor_ = 1;
};

inline constexpr Index kShortIndices = Index{1} << 31;  // numbers below it fit a ShortIndex

// Calls `call` with a 0 of the type for the numbers up to `largest`:
//   with_index_of(count, [&]<typename Number>(Number) { run(Divisor<Number>(channels)); });
template <typename Call> void with_index_of(Index largest, Call&& call) {
  if (largest < kShortIndices)
    call(ShortIndex{0});
  else
    call(Index{0});
}

}  // namespace lockstep::cuda
