// Division by multiplication against the processor's division.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/kernels/emulated_cuda/cuda_runtime.h"  // replaces CUDA's own
// The kernels' header needs the header above.
#include "kernels/cuda/fast_division.cuh"

namespace lockstep::cuda {
namespace {

constexpr Index kLargest = kShortIndices - 1;

// Numbers from 1 on: small ones, the neighbours of powers of two and of their multiples by three, and random ones.
std::vector<Index> numbers() {
  std::vector<Index> all;
  for (Index small = 1; small < 70; ++small) all.push_back(small);
  for (Index power = 64; power <= kShortIndices; power *= 2)
    for (const Index center : {power, power / 2 * 3})
      for (Index near = center - 2; near <= center + 2; ++near)
        if (near <= kLargest) all.push_back(near);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) all.push_back(static_cast<Index>(random() >> (1 + random() % 24)) + 1);
  return all;
}

template <typename Number> void expect_quotient(const Divisor<Number>& divisor, Index of, Index by) {
  const auto index = static_cast<Number>(of);
  const Divided<Number> divided = divisor.divide(index);
  ASSERT_EQ(divisor.quotient(index), of / by) << of << " / " << by;
  ASSERT_EQ(divided.quotient, of / by) << of << " / " << by;
  ASSERT_EQ(divided.remainder, of % by) << of << " % " << by;
}

// An error would first show next to a multiple of the divisor.
TEST(FastDivision, IsExactForAllShortIndices) {
  for (const Index by : numbers()) {
    const Divisor<ShortIndex> divisor(by);
    ASSERT_EQ(divisor.value(), by);
    for (const Index of : numbers())
      for (const Index near : {of, of / by * by, of / by * by + by - 1, of / by * by - 1})
        if (near >= 0 && near <= kLargest) expect_quotient(divisor, near, by);
    expect_quotient(divisor, 0, by);
    expect_quotient(divisor, kLargest / by * by, by);
    expect_quotient(divisor, kLargest, by);
    if (HasFatalFailure()) return;
  }
}

TEST(FastDivision, IsExactForLongIndices) {
  for (const Index by : {Index{1}, Index{3}, Index{1} << 31, (Index{1} << 40) + 1})
    for (const Index of : {Index{0}, kShortIndices, (Index{1} << 40), (Index{1} << 62) + 5})
      expect_quotient(Divisor<Index>(by), of, by);
}

TEST(FastDivision, NoDivisorAndZeroAreOne) {
  for (const auto& divisor : {Divisor<ShortIndex>(), Divisor<ShortIndex>(0)}) expect_quotient(divisor, kLargest, 1);
  for (const auto& divisor : {Divisor<Index>(), Divisor<Index>(0)}) expect_quotient(divisor, kShortIndices, 1);
}

TEST(FastDivision, ShortIndicesEndAt2To31) {
  const auto bytes_of_index = [](Index largest) {
    std::size_t bytes = 0;
    with_index_of(largest, [&]<typename Number>(Number) { bytes = sizeof(Number); });
    return bytes;
  };
  EXPECT_EQ(bytes_of_index(0), sizeof(ShortIndex));
  EXPECT_EQ(bytes_of_index(kLargest), sizeof(ShortIndex));
  EXPECT_EQ(bytes_of_index(kShortIndices), sizeof(Index));
}

}  // namespace
}  // namespace lockstep::cuda
