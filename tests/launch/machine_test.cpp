// The devices, cores and nodes near each GPU, on machines from hwloc's XML.
#include "src/launch/topology/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/core/error.h"
#include "src/launch/topology/cores.h"
#include "tests/support/two_nodes.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TwoNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto machine = read_machine(); !machine->unknown_because().empty())
      GTEST_SKIP() << machine->unknown_because();
    ::setenv("HWLOC_LIBXML", "0", 1);  // hwloc's own reader: libxml leaks memory
    machine_ = read_machine(testing::two_nodes_xml());
  }
  std::vector<NearDevice> near(const std::vector<std::string>& buses) const {
    std::vector<NearDevice> all;
    for (const std::string& bus : buses) all.push_back(machine_->near("0000:" + bus + ":00.0"));
    return all;
  }
  Path path(const std::string& a, const std::string& b) const {
    return machine_->path("0000:" + a + ":00.0", "0000:" + b + ":00.0");
  }

  const std::vector<int> all_ = {0, 1, 2, 3, 4, 5, 6, 7};
  std::unique_ptr<Machine> machine_;
};

TEST_F(TwoNodes, NodesWithTheirCores) {
  const auto nodes = machine_->nodes();
  ASSERT_THAT(nodes, SizeIs(2));
  EXPECT_EQ(nodes[1].number, 1);
  EXPECT_THAT(nodes[1].cores, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(nodes[1].memory_bytes, 1'000'000'000u);
}

TEST_F(TwoNodes, WhatIsNearADevice) {
  EXPECT_THAT(machine_->near("0000:65:00.0").cores, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(machine_->near("00000000:65:00.0").nodes, ElementsAre(1)) << "as CUDA may write it";
  EXPECT_THAT(machine_->near("0000:a1:00.0").nodes, ElementsAre(0, 1));
  EXPECT_THAT(machine_->near("0000:99:00.0").cores, IsEmpty());
  EXPECT_THAT(machine_->near("nonsense").cores, IsEmpty());
}

TEST_F(TwoNodes, PathsBetweenDevices) {
  EXPECT_EQ(path("17", "18"), Path::kSameSwitch);
  EXPECT_EQ(path("17", "31"), Path::kSameHostBridge);
  EXPECT_EQ(path("17", "65"), Path::kAcrossNumaNodes);
  EXPECT_EQ(path("17", "99"), Path::kUnknown);
  EXPECT_EQ(machine_->nvlink_mb("0000:17:00.0", "0000:18:00.0"), std::nullopt);
}

TEST_F(TwoNodes, RanksGetCoresAndMemoryNearTheirGpus) {
  EXPECT_THAT(assign_near_cores(all_, near({"65", "17", "18"})),
              ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(memory_nodes(near({"65", "17", "18", "a1", "99"})), ElementsAre(1, 0, 0, -1, -1));
  EXPECT_THAT(assign_near_cores({1, 2, 6}, near({"65", "17"})), ElementsAre(ElementsAre(6), ElementsAre(1, 2)))
      << "only what was inherited";
}

TEST_F(TwoNodes, WhereThePlaceIsNotKnownCoresAreSplitAsEver) {
  const auto plain = ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(assign_near_cores(all_, near({"65", "99"})), plain);
  EXPECT_THAT(assign_near_cores(all_, near({"65", "a1"})), plain) << "they would overlap";
  EXPECT_THAT(assign_near_cores({0, 1, 2, 3}, near({"65", "17"})), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)))
      << "no core near the first";
}

TEST_F(TwoNodes, MoreRanksThanCoresOfTheNodeTakeTurnsThere) {
  EXPECT_THAT(assign_near_cores({3, 4, 5}, near({"17", "17", "65"})),
              ElementsAre(ElementsAre(3), ElementsAre(3), ElementsAre(4, 5)));
}

TEST_F(TwoNodes, WhatIsNoTopologyIsRefused) { EXPECT_THROW(read_machine("<nonsense/>"), FileError); }

TEST(Machine, ThisOneHasACoreInANode) {
  const auto machine = read_machine();
  if (!machine->unknown_because().empty()) GTEST_SKIP() << machine->unknown_because();
  ASSERT_FALSE(machine->nodes().empty());
  EXPECT_FALSE(machine->nodes()[0].cores.empty());
}

}  // namespace
}  // namespace lockstep::launch
