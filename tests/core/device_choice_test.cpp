// The device of a rank if no launcher has chosen one, and when the CPU is not a valid choice.
#include "src/core/device/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/core/device/gpu.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = DeviceChoice::Kind;

TEST(DeviceChoice, ItsWords) {
  EXPECT_EQ(parse_device_choice("auto"), (DeviceChoice{Kind::kAuto}));
  EXPECT_EQ(parse_device_choice("cpu"), (DeviceChoice{Kind::kCpu}));
  EXPECT_EQ(parse_device_choice("cpu:0"), (DeviceChoice{Kind::kCpu}));
  EXPECT_EQ(parse_device_choice("cuda"), (DeviceChoice{Kind::kCuda}));
  EXPECT_EQ(parse_device_choice("cuda:9"), (DeviceChoice{Kind::kCuda, 9}));
  for (const char* wrong : {"", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:0,1", "cpu:1"})
    EXPECT_THAT(message_of([&] { parse_device_choice(wrong); }),
                HasSubstr("LOCKSTEP_DEVICE='" + std::string(wrong) + "'"))
        << wrong;
}

GpuSources sources(bool named, bool driver, std::function<std::vector<cuda::Gpu>()> ask) {
  return {named, [driver] { return driver; }, std::move(ask)};
}

TEST(FindGpus, WithoutADriverTheCudaPartIsNotEvenLoaded) {
  const GpuSearch found =
      find_gpus(sources(false, false, []() -> std::vector<cuda::Gpu> { throw Error("it was loaded"); }));
  EXPECT_EQ(found.why_none, "no NVIDIA driver is installed (there is no libcuda.so.1)");
}

TEST(FindGpus, NoGpuIsAnAnswerAndABrokenOneAnError) {
  const auto none = []() -> std::vector<cuda::Gpu> { throw cuda::NoGpu("the driver sees no GPU"); };
  EXPECT_EQ(find_gpus(sources(false, true, none)).why_none, "the driver sees no GPU");
  EXPECT_EQ(find_gpus(sources(true, false, none)).why_none, "the driver sees no GPU");
  const auto broken = []() -> std::vector<cuda::Gpu> { throw Error("cuDNN is not found"); };
  EXPECT_EQ(message_of([&] { find_gpus(sources(false, true, broken)); }), "cuDNN is not found");
  EXPECT_EQ(message_of([&] { find_gpus(sources(true, false, broken)); }), "cuDNN is not found");
  const auto two = [] { return std::vector<cuda::Gpu>(2); };
  EXPECT_EQ(find_gpus(sources(false, true, two)).gpus.size(), 2u);
}

TEST(ClearlyNoGpus, OnlyWithoutANameATraceAndALibrary) {
  const std::string here = "/proc/self", nowhere = "/proc/self/no-driver";
  const auto ask = []() -> std::vector<cuda::Gpu> { throw Error("it was loaded"); };
  const auto none = clearly_no_gpus(sources(false, false, ask), {nowhere});
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->why_none, find_gpus(sources(false, false, ask)).why_none);
  EXPECT_FALSE(clearly_no_gpus(sources(true, false, ask), {nowhere})) << "a CUDA part is named";
  EXPECT_FALSE(clearly_no_gpus(sources(false, true, ask), {nowhere})) << "the kernel's part comes with the first use";
  EXPECT_FALSE(clearly_no_gpus({false, []() -> bool { throw Error("it was opened"); }, ask}, {nowhere, here}))
      << "there is a driver";
}

TEST(GpuOfLocalRank, InOrderSeveralOnOneAndTheOnlyOneThatAManagerGave) {
  EXPECT_EQ(gpu_of_local_rank(1, 2, 1, false), 1);
  EXPECT_EQ(gpu_of_local_rank(3, 2, 2, false), 1);
  EXPECT_EQ(gpu_of_local_rank(3, 1, 1, true), 0) << "srun --gpus-per-task=1";
  EXPECT_EQ(gpu_of_local_rank(1, 1, 2, true), 0);
  const auto fault = [](int rank, int gpus, int share, bool own) {
    return message_of([=] { gpu_of_local_rank(rank, gpus, share, own); });
  };
  EXPECT_THAT(fault(2, 2, 1, false), AllOf(HasSubstr("local rank 2 has no GPU: this process sees 2, for 1 rank each"),
                                           HasSubstr("LOCKSTEP_SHARE_GPU=K"), HasSubstr("LOCKSTEP_DEVICE=cpu")));
  EXPECT_THAT(fault(1, 1, 1, false), HasSubstr("local rank 1 has no GPU"));
  EXPECT_THAT(fault(4, 2, 2, true), HasSubstr("sees 2, for 2 ranks each"));
}

TEST(MemoryPolicyOf, ARanksShareUnlessTheUserSaysMore) {
  using Policy = MemoryPolicy;
  EXPECT_EQ(memory_policy_of(std::nullopt, 1000, 1), (Policy{Policy::Kind::kGrow, 0}));
  EXPECT_EQ(memory_policy_of(std::nullopt, 1000, 4), (Policy{Policy::Kind::kLimit, 225}));
  EXPECT_EQ(memory_policy_of("512M", 1000, 4), (Policy{Policy::Kind::kLimit, 512ull << 20}));
  EXPECT_THAT(message_of([] { memory_policy_of("much", 1000, 1); }),
              AllOf(HasSubstr("LOCKSTEP_GPU_MEMORY: 'much' is not an amount of memory"), HasSubstr("all:8G")));
}

}  // namespace
}  // namespace lockstep
