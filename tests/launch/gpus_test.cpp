// Which rank gets which GPU, on machines that are made up.
#include "src/launch/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Kind = GpuRequest::Kind;

const std::vector<VisibleGpu> kTwo = {{"H200", "GPU-8c9f11", 100'000'000'000}, {"H200", "GPU-8caa22", 100'000'000'000}};

std::vector<std::optional<int>> gpus_of(const std::string& request, int share, int ranks) {
  return assign_gpus(parse_gpus(request, share), kTwo, "", ranks).gpu_of_rank;
}

TEST(ParseGpus, ReadsItsForms) {
  EXPECT_EQ(parse_gpus("auto", 1), (GpuRequest{Kind::kAuto, {}, 1}));
  EXPECT_EQ(parse_gpus("all", 2), (GpuRequest{Kind::kAll, {}, 2}));
  EXPECT_EQ(parse_gpus("none", 1), (GpuRequest{Kind::kNone, {}, 1}));
  EXPECT_EQ(parse_gpus("1,0", 1), (GpuRequest{Kind::kList, {"1", "0"}, 1}));
  EXPECT_EQ(parse_gpus("GPU-8c9f", 1), (GpuRequest{Kind::kList, {"GPU-8c9f"}, 1}));
  for (const char* text : {"", ",", "0,", "gpu0", "-1", "0 1"})
    EXPECT_THAT(message_of([&] { parse_gpus(text, 1); }), HasSubstr("is no GPU: auto, all, none, or a list")) << text;
  EXPECT_THAT(message_of([] { parse_gpus("all", 0); }), HasSubstr("--share-gpu 0"));
}

TEST(AssignGpus, RanksTakeThemInOrder) {
  EXPECT_THAT(gpus_of("auto", 1, 2), ElementsAre(0, 1));
  EXPECT_THAT(gpus_of("1,0", 1, 2), ElementsAre(1, 0));
  EXPECT_THAT(gpus_of("GPU-8ca", 1, 1), ElementsAre(1));
  EXPECT_THAT(gpus_of("all", 2, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(gpus_of("1", 3, 3), ElementsAre(1, 1, 1));
}

TEST(AssignGpus, TheRanksAreToldByTheirEnvironment) {
  const auto alone = assign_gpus(parse_gpus("1", 1), kTwo, "", 1);
  EXPECT_THAT(alone.environment[0], ElementsAre(Pair("LOCKSTEP_DEVICE", "cuda:1")));
  const auto shared = assign_gpus(parse_gpus("0", 2), kTwo, "", 2);
  EXPECT_THAT(shared.environment[1],
              ElementsAre(Pair("LOCKSTEP_DEVICE", "cuda:0"), Pair("LOCKSTEP_SHARE_GPU", "2"), Pair("LOCKSTEP_GPU_MEMORY", "45000000000"),
                          Pair("NCCL_HOSTID", "lockstep-rank-1"), Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1")));
}

TEST(AssignGpus, WithoutGpusRanksAreOnTheCpuAndOneLineSaysSo) {
  const auto assignment = assign_gpus(parse_gpus("auto", 1), {}, "no NVIDIA driver is loaded", 2);
  EXPECT_THAT(assignment.gpu_of_rank, ElementsAre(std::nullopt, std::nullopt));
  EXPECT_THAT(assignment.environment[1], ElementsAre(Pair("LOCKSTEP_DEVICE", "cpu")));
  EXPECT_EQ(assignment.remark, "no GPU is used: no NVIDIA driver is loaded");
  EXPECT_THAT(assign_gpus(parse_gpus("none", 1), kTwo, "", 2).remark, IsEmpty()) << "who asked for it need not be told";
}

TEST(AssignGpus, WhatCannotBeIsSaidWithTheRemedy) {
  EXPECT_THAT(message_of([] { gpus_of("7", 1, 1); }),
              HasSubstr("--gpus 7: this machine shows 2 GPUs, counted from 0: 0 (H200, GPU-8c9f11), 1 (H200, GPU-8caa22)"));
  EXPECT_THAT(message_of([] { gpus_of("GPU-8c", 1, 1); }), HasSubstr("GPU-8c9f11 and GPU-8caa22 both begin so"));
  EXPECT_THAT(message_of([] { gpus_of("GPU-77", 1, 1); }), HasSubstr("no visible GPU has that UUID"));
  EXPECT_THAT(message_of([] { gpus_of("0,0", 1, 1); }), HasSubstr("GPU 0 is named twice"));
  EXPECT_THAT(message_of([] { gpus_of("all", 1, 3); }), HasSubstr("3 ranks need 3 GPUs, and there are 2: start fewer, let --share-gpu 2"));
  EXPECT_THAT(message_of([] { gpus_of("1", 2, 3); }), HasSubstr("3 ranks need 2 GPUs, and there is 1: start fewer, let --share-gpu 3"));
  EXPECT_THAT(message_of([] { assign_gpus(parse_gpus("all", 1), {}, "no NVIDIA driver is loaded", 1); }),
              HasSubstr("there is none to use: no NVIDIA driver is loaded; without GPUs: --gpus none"));
}

TEST(DescribeGpus, ListsPhysicalAndLogicalDevices) {
  EXPECT_EQ(describe_gpus({kTwo[0]}, 1), "gpu 0: H200, 100.0 GB, GPU-8c9f11\n");
  EXPECT_EQ(describe_gpus(kTwo, 2),
            "gpu 0: H200, 100.0 GB, GPU-8c9f11: logical devices 0, 1 with 45.0 GB each\n"
            "gpu 1: H200, 100.0 GB, GPU-8caa22: logical devices 2, 3 with 45.0 GB each\n");
}

}  // namespace
}  // namespace lockstep::launch
