// The assignment of GPUs to ranks, on invented machines.
#include "src/launch/topology/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::Pair;
using ::testing::StartsWith;

const std::vector<Gpu> kTwo = {{0, "H200", "GPU-8c9f11", "0000:17:00.0", 100'000'000'000, 9, 0},
                               {1, "H200", "GPU-8caa22", "0000:65:00.0", 100'000'000'000, 9, 0}};

std::vector<std::optional<int>> gpus_of(const std::string& request, int share, int ranks) {
  return assign_gpus(parse_gpus(request, share), kTwo, "", {ranks}).gpu_of_rank;
}

TEST(ParseGpus, ReadsItsForms) {
  EXPECT_EQ(parse_gpus("auto", 1), (GpuRequest{GpuRequest::Kind::kAuto, {}, 1}));
  EXPECT_EQ(parse_gpus("all", 2), (GpuRequest{GpuRequest::Kind::kAll, {}, 2}));
  EXPECT_EQ(parse_gpus("none", 1), (GpuRequest{GpuRequest::Kind::kNone, {}, 1}));
  EXPECT_EQ(parse_gpus("1,0", 1), (GpuRequest{GpuRequest::Kind::kList, {"1", "0"}, 1}));
  EXPECT_EQ(parse_gpus("GPU-8c9f", 1), (GpuRequest{GpuRequest::Kind::kList, {"GPU-8c9f"}, 1}));
  for (const char* text : {"", ",", "0,", "gpu0", "-1", "0 1"})
    EXPECT_THAT(message_of([&] { parse_gpus(text, 1); }),
                HasSubstr("is not a GPU; expected auto, all, none, or a list"))
        << text;
  EXPECT_THAT(message_of([] { parse_gpus("all", 0); }), HasSubstr("--share-gpu 0"));
}

TEST(RequestByDevice, SaysInFlagsWhatTheVariableSays) {
  EXPECT_EQ(request_by_device("auto", 2), parse_gpus("auto", 2));
  EXPECT_EQ(request_by_device("cpu", 1), parse_gpus("none", 1));
  EXPECT_EQ(request_by_device("cuda", 1), (GpuRequest{GpuRequest::Kind::kAll, {}, 1, true}));
  EXPECT_EQ(request_by_device("cuda:3", 1), (GpuRequest{GpuRequest::Kind::kList, {"3"}, 1, true}));
  EXPECT_THAT(message_of([] { request_by_device("gpu", 1); }),
              HasSubstr("LOCKSTEP_DEVICE='gpu' is invalid: expected auto, cpu, cuda or cuda:N"));
}

TEST(AssignGpus, RanksTakeThemInOrder) {
  EXPECT_THAT(gpus_of("auto", 1, 2), ElementsAre(0, 1));
  EXPECT_THAT(gpus_of("1,0", 1, 2), ElementsAre(1, 0));
  EXPECT_THAT(gpus_of("GPU-8ca", 1, 1), ElementsAre(1));
  EXPECT_THAT(gpus_of("all", 2, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(gpus_of("1", 3, 3), ElementsAre(1, 1, 1));
}

TEST(AssignGpus, TheRanksAreToldByTheirEnvironment) {
  const auto alone = assign_gpus(parse_gpus("1", 1), kTwo, "", {1});
  EXPECT_THAT(alone.environment[0], ElementsAre(Pair("LOCKSTEP_DEVICE", Optional(std::string("cuda:1"))),
                                                Pair("LOCKSTEP_SHARE_GPU", std::nullopt)));
  const auto shared = assign_gpus(parse_gpus("0", 2), kTwo, "", {2});
  EXPECT_EQ(shared.environment[1],
            (std::vector<EnvironmentChange>{
                {"LOCKSTEP_DEVICE", "cuda:0"}, {"LOCKSTEP_SHARE_GPU", "2"}, {"LOCKSTEP_GPU_MEMORY", "45000000000"}}));
}

TEST(AssignGpus, TheUsersMemoryStays) {
  const auto shared = assign_gpus(parse_gpus("0", 2), kTwo, "", {2, 0, "4G"});
  for (const auto& [name, value] : shared.environment[0]) EXPECT_NE(name, "LOCKSTEP_GPU_MEMORY");
  EXPECT_THAT(message_of([] {
                assign_gpus(parse_gpus("0", 1), kTwo, "", {1, 0, "lots"});
              }),
              HasSubstr("LOCKSTEP_GPU_MEMORY: 'lots' is not an amount of memory"));
}

TEST(AssignGpus, WithoutGpusRanksAreOnTheCpuAndOneLineSaysSo) {
  const auto assignment = assign_gpus(parse_gpus("auto", 1), {}, "no NVIDIA driver is loaded", {2});
  EXPECT_THAT(assignment.gpu_of_rank, ElementsAre(std::nullopt, std::nullopt));
  EXPECT_EQ(assignment.environment[1], (std::vector<EnvironmentChange>{{"LOCKSTEP_DEVICE", "cpu"}}));
  EXPECT_EQ(assignment.remark, "computing on the CPU: no NVIDIA driver is loaded");
  EXPECT_THAT(assign_gpus(parse_gpus("none", 1), kTwo, "", {2}).remark, IsEmpty())
      << "who asked for it need not be told";
}

TEST(AssignGpus, WhatCannotBeIsSaidWithTheRemedy) {
  EXPECT_THAT(
      message_of([] { gpus_of("7", 1, 1); }),
      HasSubstr("--gpus 7: this machine shows 2 GPUs, counted from 0: 0 (H200, GPU-8c9f11), 1 (H200, GPU-8caa22)"));
  EXPECT_THAT(message_of([] { gpus_of("GPU-8c", 1, 1); }), HasSubstr("GPU-8c9f11 and GPU-8caa22 both begin with it"));
  EXPECT_THAT(message_of([] { gpus_of("GPU-77", 1, 1); }), HasSubstr("no visible GPU has that UUID"));
  EXPECT_THAT(message_of([] { gpus_of("0,0", 1, 1); }), HasSubstr("GPU 0 is named twice"));
  EXPECT_THAT(message_of([] { gpus_of("all", 1, 3); }),
              HasSubstr("3 ranks need 3 GPUs, and there are 2: start fewer, let --share-gpu 2"));
  EXPECT_THAT(message_of([] { gpus_of("1", 2, 3); }),
              HasSubstr("3 ranks need 2 GPUs, and there is 1: start fewer, let --share-gpu 3"));
  EXPECT_THAT(message_of([] { assign_gpus(parse_gpus("all", 1), {}, "no NVIDIA driver is loaded", {1}); }),
              HasSubstr("--gpus asks for GPUs, and there is none to use: no NVIDIA driver is loaded; --gpus none "
                        "(LOCKSTEP_DEVICE=cpu)"));
  EXPECT_THAT(message_of([] { assign_gpus(request_by_device("cuda", 1), {}, "no NVIDIA driver is loaded", {1}); }),
              StartsWith("LOCKSTEP_DEVICE asks for GPUs, and there is none to use"));
  EXPECT_THAT(message_of([] { assign_gpus(request_by_device("cuda:9", 1), kTwo, "", {1}); }),
              StartsWith("LOCKSTEP_DEVICE=cuda:9: this machine shows 2 GPUs, counted from 0: "));
}

std::string described(const std::string& request, int share, const LocalRanks& ranks) {
  return describe_gpus(kTwo, assign_gpus(parse_gpus(request, share), kTwo, "", ranks), share, ranks);
}

TEST(DescribeGpus, ListsPhysicalAndLogicalDevices) {
  EXPECT_EQ(described("1,0", 1, {2, 4}),
            "gpu 1: H200, 100.0 GB, GPU-8caa22: rank 4\n"
            "gpu 0: H200, 100.0 GB, GPU-8c9f11: rank 5\n");
  EXPECT_EQ(described("all", 2, {3}),
            "gpu 0: H200, 100.0 GB, GPU-8c9f11: logical devices 0, 1 with 45.0 GB each (ranks 0, 1)\n"
            "gpu 1: H200, 100.0 GB, GPU-8caa22: logical devices 2, 3 with 45.0 GB each (rank 2)\n");
  EXPECT_EQ(described("0,1", 1, {1}),
            "gpu 0: H200, 100.0 GB, GPU-8c9f11: rank 0\n"
            "gpu 1: H200, 100.0 GB, GPU-8caa22: no rank\n");
  EXPECT_EQ(described("0", 16, {9, 0, "1G"}),
            "gpu 0: H200, 100.0 GB, GPU-8c9f11: logical devices 0, 1, ..., 15 with LOCKSTEP_GPU_MEMORY=1G each (ranks "
            "0, 1, ..., 8)\n");
}

TEST(DescribeCpu, ListsItsParts) {
  EXPECT_EQ(describe_cpu(8, 4, {2}, true), "cpu: 8 cores: logical devices 0, 1, 2, 3 with 2 cores each (ranks 0, 1)\n");
  EXPECT_EQ(describe_cpu(8, 2, {3, 5}, true),
            "cpu: 8 cores: logical devices 0, 1, 2 with 2 cores each (ranks 5, 6, 7)\n");
  EXPECT_EQ(describe_cpu(1, 2, {1}, true), "cpu: 1 core: logical devices 0, 1 that take turns (rank 0)\n");
  EXPECT_EQ(describe_cpu(2, 2, {2}, false), "cpu: 2 cores: logical devices 0, 1 on all of them (ranks 0, 1)\n");
}

}  // namespace
}  // namespace lockstep::launch
