// 16-bit buckets on simulated GPUs, with a stub of NCCL that rounds 16 bits at every rank: the reducer sums its average
// in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/reduce/reducer.h"
#include "src/core/base/half.h"
#include "tests/support/gpu_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;

std::uint16_t bits_of(DType type, float value) {
  return type == DType::kFloat16 ? narrow_float16(value).bits : narrow_bfloat16(value).bits;
}

// In the type itself large + 1 is large, because ties go to even: the ones of other ranks would be lost.
struct Sums {
  DType type;
  float large;  // whose neighbours are 2 away
};
constexpr Sums kSums[] = {{DType::kBFloat16, 256}, {DType::kFloat16, 2048}};

constexpr std::size_t kCount = 1001;

// Checks the average of what each rank puts into a bucket; the reducer runs three passes.
void expect_average(int ranks, DType type, const std::function<float(int rank, std::size_t element)>& put,
                    float expected) {
  EXPECT_THAT(
      run_gpu_ranks(ranks,
                    [&](auto group, RecordingDevice& device) {
                      Reducer reducer(group,
                                      {{.name = "w", .count = kCount, .dtype = type, .device = DeviceKind::kCuda}}, {});
                      for (int pass = 0; pass < 3; ++pass) {
                        std::vector<std::uint16_t> values(kCount);
                        for (std::size_t i = 0; i < kCount; ++i) values[i] = bits_of(type, put(group->rank(), i));
                        device.upload(reducer.slot(0).data(), values.data(), 2 * kCount, device.default_stream());
                        reducer.mark_ready(0);
                        reducer.finish();
                        device.copy(values.data(), reducer.slot(0).data(), 2 * kCount, device.default_stream());
                        device.default_stream().synchronize();
                        EXPECT_THAT(values, Each(bits_of(type, expected)));
                      }
                    }),
      Each(""));
}

// For each element another rank has the large number, and the others have ones.
TEST(DeviceWideAverage, OfThreeAndMoreRanksIsRoundedOnce) {
  for (const Sums& sums : kSums)
    for (const int ranks : {2, 3, 5}) {
      const float total = ranks == 2 ? sums.large : sums.large + static_cast<float>(ranks - 1);
      expect_average(
          ranks, sums.type,
          [&](int rank, std::size_t i) { return static_cast<int>(i) % ranks == rank ? sums.large : 1.0F; },
          total * (1 / static_cast<float>(ranks)));
    }
}

// float16 ends at 65,504, and so would a sum in it.
TEST(DeviceWideAverage, OfTwoRanksWhoseSumIsBeyondFloat16) {
  expect_average(
      2, DType::kFloat16, [](int rank, std::size_t) { return rank == 0 ? 32768.0F : 49152.0F; }, 40960);
}

}  // namespace
}  // namespace lockstep::testing
