// The output of lockrun topology for invented machines.
#include "src/launch/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology two_gpus() {
  Topology topology;
  topology.gpus = {{0, "NVIDIA H200", "GPU-8c9f11", "0000:17:00.0", 141'000'000'000, 9, 0},
                   {1, "NVIDIA H200", "GPU-8caa22", "0000:65:00.0", 141'000'000'000, 9, 0}};
  topology.gpu_nodes = {{0}, {0, 1}};
  topology.links = {{0, 1, Path::kAcrossNumaNodes, std::nullopt}};
  topology.nodes = {{0, {0, 1, 2, 3, 8}, 1'000'000'000}, {1, {}, 2'500'000'000}};
  topology.interfaces = {{"eth0", "up", 100000, 1, {"10.0.0.1", "fe80::1%eth0"}},
                         {"lo", "unknown", std::nullopt, std::nullopt, {}}};
  topology.used = "eth0";
  topology.used_why = "the default route";
  return topology;
}

TEST(Topology, SaysWhatThereIs) {
  EXPECT_EQ(text_of(two_gpus()),
            "GPUs\n"
            "  0: NVIDIA H200, 141.0 GB, compute capability 9.0, PCI 0000:17:00.0, NUMA node 0, GPU-8c9f11\n"
            "  1: NVIDIA H200, 141.0 GB, compute capability 9.0, PCI 0000:65:00.0, NUMA node not known, GPU-8caa22\n"
            "links between GPUs\n"
            "  0 - 1: across NUMA nodes\n"
            "  NVLink: not known (install hwloc's NVML plugin, or run nvidia-smi topo -m)\n"
            "NUMA nodes\n"
            "  0: cores 0-3, 8; 1.0 GB\n"
            "  1: cores none; 2.5 GB\n"
            "network interfaces\n"
            "  eth0: up, 100000 Mb/s, NUMA node 1, 10.0.0.1, fe80::1%eth0\n"
            "  lo: unknown, speed not known\n"
            "  between machines: eth0 (the default route)\n");
}

TEST(Topology, NVLinkWhenHwlocKnowsIt) {
  Topology topology = two_gpus();
  topology.links = {{0, 1, Path::kSameSwitch, 450'000}};
  EXPECT_THAT(text_of(topology), HasSubstr("  0 - 1: one PCIe switch, NVLink 450 GB/s\nNUMA"));
}

TEST(Topology, SaysWhatIsNotKnownAndWhy) {
  Topology bare;
  bare.why_no_gpus = "no driver";
  bare.why_no_nodes = "no hwloc";
  bare.used_why = "this machine has no route";
  EXPECT_EQ(text_of(bare),
            "GPUs\n  none: no driver\nlinks between GPUs\n  none: 0 GPUs\nNUMA nodes\n  not known: no hwloc\n"
            "network interfaces\n  between machines: none (this machine has no route)\n");
  EXPECT_EQ(nlohmann::json::parse(json_of(bare)).at("why_no_gpus"), "no driver");
}

TEST(Topology, TheSameForPrograms) {
  const auto all = nlohmann::json::parse(json_of(two_gpus()));
  EXPECT_EQ(all.at("gpus").at(1).at("uuid"), "GPU-8caa22");
  EXPECT_EQ(all.at("gpus").at(0).at("compute_capability"), "9.0");
  EXPECT_EQ(all.at("links").at(0).at("path"), "across NUMA nodes");
  EXPECT_TRUE(all.at("links").at(0).at("nvlink_mb_s").is_null());
  EXPECT_EQ(all.at("numa_nodes").at(0).at("cores").size(), 5u);
  EXPECT_EQ(all.at("interfaces").at(0).at("mbit_s"), 100000);
  EXPECT_EQ(all.at("interfaces").at(0).at("between_machines"), true);
  EXPECT_EQ(all.at("interfaces").at(1).at("between_machines"), false);
}

TEST(ReadInterfaces, StateSpeedAndNodeAsTheKernelSays) {
  const std::filesystem::path folder = testing::temporary("interfaces");
  const auto put = [&](const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  };
  put("eth1/operstate", "up"), put("eth1/speed", "25000"), put("eth1/device/numa_node", "1");
  put("eth0/operstate", "down"), put("eth0/speed", "-1"), put("eth0/device/numa_node", "-1");
  put("bonding_masters", "");
  const auto found = read_interfaces(folder, {{"eth1", "10.0.0.1"}, {"eth1", ""}, {"eth2", "10.0.0.2"}});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name + found[1].name, "eth0eth1");
  EXPECT_EQ(found[0].state, "down");
  EXPECT_EQ(found[0].mbit, std::nullopt);
  EXPECT_EQ(found[0].node, std::nullopt);
  EXPECT_EQ(found[1].mbit, 25000);
  EXPECT_EQ(found[1].node, 1);
  EXPECT_THAT(found[1].addresses, ElementsAre("10.0.0.1"));
}

}  // namespace
}  // namespace lockstep::launch
