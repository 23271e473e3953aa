// GPUs, cores and threads of the ranks of a machine, together.
#include "src/launch/topology/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/message_of.h"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

DeviceFacts machine(const std::string& gpus, int share, int cores, int gpu_count) {
  DeviceFacts facts;
  facts.request = parse_gpus(gpus, share);
  for (int i = 0; i < gpu_count; ++i)
    facts.found.gpus.push_back({i, "H200", "GPU-" + std::to_string(i), "", 1000, 9, 0});
  if (gpu_count == 0) facts.found.why_none = "no driver";
  for (int i = 0; i < cores; ++i) facts.cores.push_back(i);
  return facts;
}

TEST(DevicePlan, OnTheCpuRanksSplitTheCores) {
  const DevicePlan plan = plan_devices(machine("none", 1, 4, 0), {2});
  EXPECT_THAT(plan.cores, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(plan.threads, 2);
  EXPECT_THAT(plan.remarks, IsEmpty());
}

TEST(DevicePlan, RanksAreCountedByWhatThereIs) {
  using RanksFrom = LaunchSpec::RanksFrom;
  const auto count = [](RanksFrom from, const DeviceFacts& facts) {
    LaunchSpec spec;
    spec.ranks = 3;
    spec.ranks_from = from;
    return count_ranks(spec, facts);
  };
  EXPECT_EQ(count(RanksFrom::kNumber, machine("auto", 1, 8, 2)), 3);
  EXPECT_EQ(count(RanksFrom::kCores, machine("auto", 1, 8, 2)), 8);
  EXPECT_EQ(count(RanksFrom::kGpus, machine("auto", 1, 8, 2)), 2);
  EXPECT_EQ(count(RanksFrom::kGpus, machine("1", 2, 8, 2)), 2);
  EXPECT_EQ(count(RanksFrom::kDevices, machine("all", 2, 8, 2)), 4);
  EXPECT_EQ(count(RanksFrom::kDevices, machine("none", 1, 8, 2)), 8);
  EXPECT_EQ(count(RanksFrom::kDevices, machine("auto", 1, 8, 0)), 8);
  EXPECT_THAT(message_of([&] { count(RanksFrom::kGpus, machine("auto", 1, 8, 0)); }),
              HasSubstr("-n gpu: there is no GPU to count: no driver"));
}

TEST(DevicePlan, AShareOfTheCpuStaysAShareWhenFewerRanksRun) {
  const DevicePlan plan = plan_devices(machine("none", 4, 8, 0), {2});
  EXPECT_THAT(plan.cores, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(plan.threads, 2);
  EXPECT_THAT(plan.remarks, ElementsAre("cpu: 8 cores: logical devices 0, 1, 2, 3 with 2 cores each (ranks 0, 1)"));
  EXPECT_THAT(plan_devices(machine("none", 2, 6, 0), {3}).cores,
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
}

TEST(DevicePlan, WithoutEnoughCoresOrWithoutBindingNobodyIsBound) {
  EXPECT_THAT(plan_devices(machine("none", 1, 2, 0), {3}).cores, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_EQ(plan_devices(machine("none", 1, 2, 0), {3}).threads, 1);
  DeviceFacts loose = machine("none", 1, 8, 0);
  loose.bind = false;
  EXPECT_THAT(plan_devices(loose, {2}).cores, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_EQ(plan_devices(loose, {2}).threads, 4);
  loose.request.share = 2;
  EXPECT_THAT(plan_devices(loose, {2}).remarks,
              ElementsAre("cpu: 8 cores: logical devices 0, 1 on all of them (ranks 0, 1)"));
}

TEST(DevicePlan, OnGpusOneLineEachAndTheCoresAreSplitByRanks) {
  const DevicePlan plan = plan_devices(machine("all", 2, 8, 2), {4});
  EXPECT_EQ(plan.cores.size(), 4u);
  EXPECT_EQ(plan.threads, 2);
  EXPECT_THAT(plan.remarks, ElementsAre(StartsWith("gpu 0: H200"), StartsWith("gpu 1: H200")));
  EXPECT_EQ(plan.environment[3][0], EnvironmentChange("LOCKSTEP_DEVICE", "cuda:1"));
}

TEST(DevicePlan, ServersUseNoGpu) {
  const DevicePlan plan = plan_devices(machine("all", 1, 8, 2), {4, 0, {}, 2});
  ASSERT_EQ(plan.environment.size(), 4u);
  EXPECT_EQ(plan.environment[1][0], EnvironmentChange("LOCKSTEP_DEVICE", "cuda:1"));
  EXPECT_EQ(plan.environment[2][0], EnvironmentChange("LOCKSTEP_DEVICE", "cpu"));
  EXPECT_EQ(plan.environment[3][0], EnvironmentChange("LOCKSTEP_DEVICE", "cpu"));
  EXPECT_EQ(plan.cores.size(), 4u);
  EXPECT_EQ(plan.threads, 2);
  EXPECT_THAT(plan.remarks, ElementsAre(HasSubstr("rank 0"), HasSubstr("rank 1")));
  const DevicePlan servers_alone = plan_devices(machine("all", 1, 8, 2), {2, 4, {}, 2});
  EXPECT_EQ(servers_alone.environment[1][0], EnvironmentChange("LOCKSTEP_DEVICE", "cpu"));
  EXPECT_THAT(servers_alone.cores, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  DeviceFacts near = machine("all", 1, 8, 2);
  near.near = {{{4, 5, 6, 7}, {}}, {{0, 1, 2, 3}, {}}};
  EXPECT_THAT(plan_devices(near, {3, 0, {}, 1}).cores,
              ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3), IsEmpty()));
}

TEST(DevicePlan, CoresAndMemoryAreNearTheGpu) {
  DeviceFacts facts = machine("1,0", 1, 4, 2);
  facts.near = {{{0, 1}, {0}}, {{2, 3}, {1}}};
  const DevicePlan plan = plan_devices(facts, {2});
  EXPECT_THAT(plan.cores, ElementsAre(ElementsAre(2, 3), ElementsAre(0, 1)));
  EXPECT_THAT(plan.memory_nodes, ElementsAre(1, 0));
  facts.memory_obstacle = "a policy of its own";
  EXPECT_THAT(plan_devices(facts, {2}).memory_nodes, ElementsAre(-1, -1));
  EXPECT_EQ(plan_devices(facts, {2}).remarks[0], "memory is not placed near the GPUs: a policy of its own");
  facts.bind = false;
  EXPECT_THAT(plan_devices(facts, {2}).cores, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(DevicePlan, WithoutGpusOneLineSaysWhy) {
  EXPECT_THAT(plan_devices(machine("auto", 1, 8, 0), {2}).remarks, ElementsAre("computing on the CPU: no driver"));
}

TEST(DevicePlan, WhatIsBrokenIsNoReasonToUseTheCpu) {
  DeviceFacts facts = machine("auto", 1, 8, 0);
  facts.fault = "the NVIDIA driver is for CUDA 11.4";
  EXPECT_THAT(message_of([&] { plan_devices(facts, {2}); }),
              AllOf(HasSubstr("CUDA 11.4"), HasSubstr("--gpus none (LOCKSTEP_DEVICE=cpu)")));
}

}  // namespace
}  // namespace lockstep::launch
