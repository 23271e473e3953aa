// The pure functions of backend host, and its guarantee that operations need no allocation.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <tuple>

#include "src/comm/host/reduce/reduce_kernels.h"
#include "src/comm/host/shm/registered_memory.h"
#include "src/core/base/half.h"
#include "tests/conformance/exact_data.h"
#include "tests/conformance/ranks.h"
#include "tests/support/heap_count.h"

namespace lockstep::testing {
namespace {

// Converts binary16 by its definition, to check the bit manipulation.
double value_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryFloat16WidensToItsValueAndComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<std::uint16_t>(bits)};
    const float wide = widen(half);
    if ((bits & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(wide), (bits & 0x3ff) != 0) << bits;
      EXPECT_EQ(std::isinf(wide), (bits & 0x3ff) == 0) << bits;
      const Float16 back = narrow_float16(wide);
      EXPECT_TRUE(std::isnan(wide) ? std::isnan(widen(back)) : back.bits == bits) << bits;
      continue;
    }
    ASSERT_EQ(wide, static_cast<float>(value_of_half(half.bits))) << bits;
    ASSERT_EQ(narrow_float16(wide).bits, bits);
  }
}

TEST(Half, Float16RoundsToNearestAndTiesToEven) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const auto middle = static_cast<float>((value_of_half(bits) + value_of_half(next)) / 2);
    ASSERT_EQ(narrow_float16(middle).bits, bits % 2 == 0 ? bits : next) << bits;
    ASSERT_EQ(narrow_float16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(narrow_float16(std::nextafter(middle, 1e6f)).bits, next);
    ASSERT_EQ(narrow_float16(-middle).bits, 0x8000 | (bits % 2 == 0 ? bits : next));
  }
  EXPECT_EQ(narrow_float16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(narrow_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(narrow_float16(1e30f).bits, 0x7c00);
}

TEST(Half, BFloat16RoundsToNearestAndTiesToEven) {
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {
    const auto at = [&](std::uint32_t lower) {
      return narrow_bfloat16(std::bit_cast<float>((upper << 16) | lower)).bits;
    };
    ASSERT_EQ(at(0), upper);
    ASSERT_EQ(at(0x7fff), upper);
    ASSERT_EQ(at(0x8000), upper + upper % 2);
    ASSERT_EQ(at(0x8001), upper + 1);
  }
  EXPECT_TRUE(std::isnan(widen(narrow_bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Slices, CoverTheBufferOnceInWholeCacheLines) {
  for (const DType dtype : {DType::kInt8, DType::kFloat16, DType::kFloat32, DType::kInt64})
    for (const int ranks : {1, 2, 3, 7, 64})
      for (const std::size_t count : {0, 1, 15, 16, 17, 1000, 65536, 1000003}) {
        std::size_t at = 0, largest = 0, smallest = count;
        for (int rank = 0; rank < ranks; ++rank) {
          const host::Slice slice = host::slice_of(count, dtype, rank, ranks);
          ASSERT_EQ(slice.begin, at);
          ASSERT_GE(slice.end, slice.begin);
          ASSERT_TRUE(slice.end == count || slice.end * size_of(dtype) % 64 == 0) << slice.end;
          at = slice.end;
          largest = std::max(largest, slice.count());
          smallest = std::min(smallest, slice.count());
        }
        ASSERT_EQ(at, count);
        EXPECT_LE((largest - smallest) * size_of(dtype), 127u);
      }
}

// NaNs with payloads and signs, in each loop that the numbers of inputs and outputs select.
TEST(Reductions, GiveTheSameNanWhateverNansWentIn) {
  constexpr std::size_t kCount = 67;  // full vectors and a rest
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax})
    for (const host::ReduceOrder order : {host::ReduceOrder::kRank, host::ReduceOrder::kTree})
      for (int inputs = 2; inputs <= 5; ++inputs)
        for (int outputs = 1; outputs <= inputs; ++outputs) {
          std::vector<std::vector<std::uint32_t>> values;
          std::vector<std::vector<float>> results(static_cast<std::size_t>(outputs), std::vector<float>(kCount));
          std::vector<const std::byte*> in;
          std::vector<std::byte*> out;
          for (int k = 0; k < inputs; ++k) {
            auto& nans = values.emplace_back(kCount);
            for (std::size_t i = 0; i < kCount; ++i)
              nans[i] = (k % 2 == 0 ? 0xffc00000u : 0x7fc00000u) + static_cast<std::uint32_t>(k) * 64 +
                        static_cast<std::uint32_t>(i);
            in.push_back(reinterpret_cast<const std::byte*>(nans.data()));
          }
          for (auto& result : results) out.push_back(reinterpret_cast<std::byte*>(result.data()));
          host::reduce({DType::kFloat32, op, inputs, outputs, in.data(), out.data(), kCount, order});
          for (const auto& result : results)
            for (const float value : result)
              ASSERT_EQ(std::bit_cast<std::uint32_t>(value), 0x7fc00000u) << name_of(op) << " of " << inputs;
        }
}

TEST(Reductions, GiveTheSame16BitNan) {
  constexpr std::size_t kCount = 67;
  const std::uint16_t halves[] = {0xfe01, 0x7c05}, brains[] = {0xffc1, 0x7f85};  // the second ones are signalling
  for (const auto& [dtype, nans, expected] :
       {std::tuple{DType::kFloat16, halves, 0x7e00}, std::tuple{DType::kBFloat16, brains, 0x7fc0}})
    for (std::size_t inputs = 2; inputs <= 5; ++inputs)
      for (std::size_t outputs = 1; outputs <= inputs; ++outputs) {
        std::vector<std::vector<std::uint16_t>> values, results(outputs, std::vector<std::uint16_t>(kCount));
        std::vector<const std::byte*> in;
        std::vector<std::byte*> out;
        for (std::size_t k = 0; k < inputs; ++k)
          in.push_back(reinterpret_cast<const std::byte*>(values.emplace_back(kCount, nans[k % 2]).data()));
        for (auto& result : results) out.push_back(reinterpret_cast<std::byte*>(result.data()));
        host::reduce({dtype, ReduceOp::kSum, static_cast<int>(inputs), static_cast<int>(outputs), in.data(), out.data(),
                      kCount});
        for (const auto& result : results)
          for (const std::uint16_t bits : result) ASSERT_EQ(bits, expected) << name_of(dtype) << " of " << inputs;
      }
}

TEST(RegisteredMemory, IsFoundByAddressUntilItsLastHandleGoes) {
  const auto memory = std::make_shared<host::RegisteredMemory>(1);
  const auto make = [&](std::size_t bytes) {
    return host::RegisteredMemory::add(memory, host::map_private_segment(2 * host::RegisteredMemory::stride_of(bytes)),
                                       bytes);
  };
  Buffer first = make(5000), second = make(100);
  EXPECT_EQ(memory->find(first.data(), 5000).location.segment, 1u);
  EXPECT_EQ(memory->find(second.data() + 40, 60).location.segment, 2u);
  EXPECT_EQ(memory->find(second.data() + 40, 60).location.offset, 40u);
  EXPECT_EQ(memory->find(second.data() + 40, 61).location.segment, 0u);  // reaches beyond the end
  EXPECT_EQ(memory->find(first.data() - 1, 1).location.segment, 0u);     // rank 0's part
  EXPECT_EQ(memory->find(&first, 1).location.segment, 0u);
  const auto found = memory->find(first.data() + 8, 4);
  EXPECT_EQ(found.at(1, found.location.offset, 0, 4), first.data() + 8);
  EXPECT_EQ(found.at(0, 0, 0, 4), first.data() - 8192);
  Buffer window = first.window(64, 64);
  std::byte* const address = first.data();
  first = Buffer();
  EXPECT_EQ(memory->find(address, 1).location.segment, 1u);
  window = Buffer();
  EXPECT_EQ(memory->find(address, 1).location.segment, 0u);
}

// Counted for the entire process, round by round: the heartbeats of the three failure detectors, one a second each, may
// fall into some of the rounds.
TEST(Allocations, AnOperationMakesNone) {
  constexpr int kWarmUp = 10, kRounds = 30;
  for (const Wire wire : {Wire::kThreads, Wire::kTcp}) {
    int rounds_with_allocations = 0;
    double seconds = 0;
    run_threads({.wire = wire, .ranks = 3}, [&](Rank& rank) {
      const Buffer registered = rank.backend().allocate(120000);
      std::vector<float> plain(30000), gathered(3000);
      auto start = std::chrono::steady_clock::now();
      for (int round = 0; round < kRounds; ++round) {
        rank.barrier();
        if (round == kWarmUp) start = std::chrono::steady_clock::now();
        const std::uint64_t before = test_support::heap_allocations();
        rank.barrier();
        rank.all_reduce(registered.data(), 30000);
        rank.all_reduce(plain.data(), plain.size());
        rank.all_reduce(plain.data(), 3);
        rank.broadcast(plain.data(), plain.size(), DType::kFloat32, 1);
        rank.all_gather(plain.data(), gathered.data(), 1000, DType::kFloat32);
        rank.backend().start(rank.reduction(registered.data(), 30000, DType::kFloat32, ReduceOp::kSum)).wait();
        rank.barrier();
        if (rank.rank() == 0 && round >= kWarmUp && test_support::heap_allocations() != before)
          ++rounds_with_allocations;
        rank.barrier();
      }
      if (rank.rank() == 0) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    EXPECT_LE(rounds_with_allocations, std::min(2 + static_cast<int>(3 * seconds), kRounds - kWarmUp - 1))
        << name_of(wire);
  }
}

}  // namespace
}  // namespace lockstep::testing
