// A machine with two NUMA nodes and four GPUs, in hwloc's format.
#pragma once

#include <fmt/format.h>

#include <string>

namespace lockstep::testing {

namespace two_nodes {

// Two packages of 4 cores, with a NUMA node each. Below the first are a switch with two GPUs and, on a separate bridge,
// a network card; below the second a GPU. A fourth GPU belongs to the machine itself, as if the firmware did not report
// its place.
inline std::string package(int node, const std::string& devices) {
  const std::string cores = node == 0 ? "0x0000000f" : "0x000000f0", nodes = node == 0 ? "0x00000001" : "0x00000002";
  const auto sets = [&](const std::string& set) {
    return fmt::format(R"(cpuset="{0}" complete_cpuset="{0}" nodeset="{1}" complete_nodeset="{1}")", set, nodes);
  };
  std::string xml =
      fmt::format(R"(<object type="Package" os_index="{}" {} gp_index="{}">)", node, sets(cores), 100 + node);
  xml += fmt::format(R"(<object type="NUMANode" os_index="{}" {} gp_index="{}" local_memory="1000000000"/>)", node,
                     sets(cores), 200 + node);
  for (int core = 4 * node; core < 4 * node + 4; ++core) {
    const std::string own = sets(fmt::format("{:#010x}", 1 << core));
    xml += fmt::format(
        R"(<object type="Core" os_index="{}" {} gp_index="{}"><object type="PU" os_index="{}" {} gp_index="{}"/></object>)",
        core, own, 300 + core, core, own, 400 + core);
  }
  return xml + devices + "</object>";
}

inline std::string bridge(const std::string& kind, int index, const std::string& below) {
  const bool host = kind == "0-1";
  return fmt::format(
      R"(<object type="Bridge" gp_index="{}" bridge_type="{}" depth="{}" bridge_pci="0000:[{:02x}-{:02x}]"{}>{}</object>)",
      500 + index, kind, host ? 0 : 1, host ? 0 : index, host ? 0xff : index,
      host ? ""
           : fmt::format(
                 R"( pci_busid="0000:{:02x}:1f.0" pci_type="0604 [8086:1901] [0000:0000] 00" pci_link_speed="0")",
                 index),
      below);
}

inline std::string device(const std::string& bus, const std::string& type, int index) {
  return fmt::format(
      R"(<object type="PCIDev" gp_index="{}" pci_busid="0000:{}:00.0" pci_type="{} [10de:2335] [10de:18be] a1" pci_link_speed="63"/>)",
      600 + index, bus, type);
}

}  // namespace two_nodes

inline std::string two_nodes_xml() {
  using namespace two_nodes;
  const std::string gpu = "0302", card = "0207";
  const std::string first = bridge(
      "0-1", 1,
      bridge("1-1", 0x16, device("17", gpu, 1) + device("18", gpu, 2)) + bridge("1-1", 0x30, device("31", card, 3)));
  const std::string second = bridge("0-1", 2, bridge("1-1", 0x64, device("65", gpu, 4)));
  const std::string loose = bridge("0-1", 3, bridge("1-1", 0xa0, device("a1", gpu, 5)));
  const std::string all =
      R"(cpuset="0x000000ff" complete_cpuset="0x000000ff" allowed_cpuset="0x000000ff" nodeset="0x00000003" complete_nodeset="0x00000003" allowed_nodeset="0x00000003")";
  // hwloc's own reader requires the first two on separate lines.
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
         R"(<topology version="2.0"><object type="Machine" os_index="0" )" +
         all + R"( gp_index="1">)" + package(0, first) + package(1, second) + loose + "</object></topology>";
}

}  // namespace lockstep::testing
