// The report of `lockrun topology`: GPUs, links between them, NUMA nodes, network interfaces. Functions that read the
// machine and functions that format the report are apart.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/net/interface.h"
#include "src/core/device/gpu.h"
#include "src/launch/topology/machine.h"

namespace lockstep::launch {

struct GpuLink {
  int from = 0, to = 0;
  Path path = Path::kUnknown;
  std::optional<std::size_t> nvlink_mb;  // MB/s
};

struct NetworkInterface {
  std::string name;
  std::string state;         // the kernel's word: up, down, unknown
  std::optional<long> mbit;  // Mb/s; virtual ones have none
  std::optional<int> node;   // NUMA
  std::vector<std::string> addresses;
};

struct Topology {
  std::vector<cuda::Gpu> gpus;
  std::vector<std::vector<int>> gpu_nodes;  // by GPU; more than one: the machine does not say which
  std::string why_no_gpus;                  // or what is broken
  std::vector<GpuLink> links;               // of each pair
  std::string why_no_nodes;                 // machines are not known without hwloc
  std::vector<NumaNode> nodes;
  std::vector<NetworkInterface> interfaces;
  std::string used;      // the interface under which other machines would reach this one; empty: none
  std::string used_why;  // or why there is none
};

// Of this machine. Starts the driver in this process when there are GPUs.
Topology read_topology();

// Of the kernel's list (/sys/class/net) and the addresses that are up.
std::vector<NetworkInterface> read_interfaces(const std::filesystem::path& list,
                                              const std::vector<InterfaceAddress>& addresses);

std::string text_of(const Topology& topology);
std::string json_of(const Topology& topology);

}  // namespace lockstep::launch
