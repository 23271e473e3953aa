// What is near which GPU, on machines that hwloc is told of.
#include "src/launch/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/launch/near_cores.h"
#include "tests/support/message_of.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two packages of 4 cores, a NUMA node each. Below the first a switch with two GPUs and, on a bridge of its own, a network card;
// below the second a GPU. A fourth one hangs on the machine itself, as where the firmware does not say.
std::string package(int node, const std::string& devices) {
  const std::string cores = node == 0 ? "0x0000000f" : "0x000000f0", nodes = node == 0 ? "0x00000001" : "0x00000002";
  const auto sets = [&](const std::string& set) {
    return fmt::format(R"(cpuset="{0}" complete_cpuset="{0}" nodeset="{1}" complete_nodeset="{1}")", set, nodes);
  };
  std::string xml = fmt::format(R"(<object type="Package" os_index="{}" {} gp_index="{}">)", node, sets(cores), 100 + node);
  xml +=
      fmt::format(R"(<object type="NUMANode" os_index="{}" {} gp_index="{}" local_memory="1000000000"/>)", node, sets(cores), 200 + node);
  for (int core = 4 * node; core < 4 * node + 4; ++core) {
    const std::string own = sets(fmt::format("{:#010x}", 1 << core));
    xml += fmt::format(R"(<object type="Core" os_index="{}" {} gp_index="{}"><object type="PU" os_index="{}" {} gp_index="{}"/></object>)",
                       core, own, 300 + core, core, own, 400 + core);
  }
  return xml + devices + "</object>";
}

std::string bridge(const std::string& kind, int index, const std::string& below) {
  const bool host = kind == "0-1";
  return fmt::format(
      R"(<object type="Bridge" gp_index="{}" bridge_type="{}" depth="{}" bridge_pci="0000:[{:02x}-{:02x}]"{}>{}</object>)", 500 + index,
      kind, host ? 0 : 1, host ? 0 : index, host ? 0xff : index,
      host ? "" : fmt::format(R"( pci_busid="0000:{:02x}:1f.0" pci_type="0604 [8086:1901] [0000:0000] 00" pci_link_speed="0")", index),
      below);
}

std::string device(const std::string& bus, const std::string& type, int index) {
  return fmt::format(
      R"(<object type="PCIDev" gp_index="{}" pci_busid="0000:{}:00.0" pci_type="{} [10de:2335] [10de:18be] a1" pci_link_speed="63"/>)",
      600 + index, bus, type);
}

std::string two_nodes() {
  const std::string gpu = "0302", card = "0207";
  const std::string first =
      bridge("0-1", 1, bridge("1-1", 0x16, device("17", gpu, 1) + device("18", gpu, 2)) + bridge("1-1", 0x30, device("31", card, 3)));
  const std::string second = bridge("0-1", 2, bridge("1-1", 0x64, device("65", gpu, 4)));
  const std::string loose = bridge("0-1", 3, bridge("1-1", 0xa0, device("a1", gpu, 5)));
  const std::string all =
      R"(cpuset="0x000000ff" complete_cpuset="0x000000ff" allowed_cpuset="0x000000ff" nodeset="0x00000003" complete_nodeset="0x00000003" allowed_nodeset="0x00000003")";
  return R"(<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0"><object type="Machine" os_index="0" )" +
         all + R"( gp_index="1">)" + package(0, first) + package(1, second) + loose + "</object></topology>";
}

class TwoNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto machine = read_machine(); !machine->unknown_because().empty()) GTEST_SKIP() << machine->unknown_because();
    machine_ = read_machine(two_nodes());
  }
  std::vector<NearDevice> near(const std::vector<std::string>& buses) const {
    std::vector<NearDevice> all;
    for (const std::string& bus : buses) all.push_back(machine_->near("0000:" + bus + ":00.0"));
    return all;
  }
  Path path(const std::string& a, const std::string& b) const { return machine_->path("0000:" + a + ":00.0", "0000:" + b + ":00.0"); }

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
  EXPECT_THAT(assign_near_cores({3, 4, 5}, near({"17", "17", "65"})), ElementsAre(ElementsAre(3), ElementsAre(3), ElementsAre(4, 5)));
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
