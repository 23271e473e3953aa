// Buckets of 16 bits on GPUs made of threads, over a stub of NCCL that rounds 16 bits at every rank: the reducer's average is summed in
// float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/reduce/reducer.h"
#include "src/core/half.h"
#include "tests/support/gpu_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;

std::uint16_t bits_of(DType type, float value) {
  return type == DType::kFloat16 ? narrow_float16(value).bits : narrow_bfloat16(value).bits;
}

// In the type itself large + 1 is large, for ties go to even: the ones of other ranks are lost.
struct Sums {
  DType type;
  float large;  // whose neighbours are 2 away
};
constexpr Sums kSums[] = {{DType::kBFloat16, 256}, {DType::kFloat16, 2048}};

TEST(DeviceWideAverage, OfThreeAndMoreRanksIsRoundedOnce) {
  for (const Sums& sums : kSums)
    for (const int ranks : {2, 3, 5})
      EXPECT_THAT(run_gpu_ranks(ranks,
                                [&](auto group, RecordingDevice& device) {
                                  constexpr std::size_t kCount = 1001;
                                  Reducer reducer(group, {{.name = "w", .count = kCount, .dtype = sums.type, .device = DeviceKind::kCuda}},
                                                  {});
                                  for (int pass = 0; pass < 3; ++pass) {
                                    // One rank, another for each element, has the large number, the others have ones.
                                    std::vector<std::uint16_t> values(kCount);
                                    for (std::size_t i = 0; i < kCount; ++i)
                                      values[i] = bits_of(sums.type, static_cast<int>(i) % ranks == group->rank() ? sums.large : 1);
                                    device.upload(reducer.slot(0).data(), values.data(), 2 * kCount, device.default_stream());
                                    reducer.mark_ready(0);
                                    reducer.finish();
                                    device.copy(values.data(), reducer.slot(0).data(), 2 * kCount, device.default_stream());
                                    device.default_stream().synchronize();
                                    const float total = ranks == 2 ? sums.large : sums.large + static_cast<float>(ranks - 1);
                                    const float share = 1 / static_cast<float>(ranks);
                                    EXPECT_THAT(values, Each(bits_of(sums.type, total * share)));
                                  }
                                }),
                  Each(""));
}

}  // namespace
}  // namespace lockstep::testing
