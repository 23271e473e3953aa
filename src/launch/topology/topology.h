// The report of `lockrun topology`: GPUs, links between them, NUMA nodes, network interfaces. Reading the machine and
// formatting the report are separate functions.
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
  std::string state;         // the kernel's value: up, down, unknown
  std::optional<long> mbit;  // Mb/s; virtual interfaces have none
  std::optional<int> node;   // NUMA node
  std::vector<std::string> addresses;
};

struct Topology {
  std::vector<cuda::Gpu> gpus;
  std::vector<std::vector<int>> gpu_nodes;  // by GPU; several: the machine does not say which
  std::string why_no_gpus;                  // or the failure
  std::vector<GpuLink> links;               // for each pair
  std::string why_no_nodes;                 // without hwloc they are unknown
  std::vector<NumaNode> nodes;
  std::vector<NetworkInterface> interfaces;
  std::string used;      // the interface at which other machines would reach this one; empty: none
  std::string used_why;  // or the reason why there is none
};

// Reads this machine. Starts the driver in this process if there are GPUs.
Topology read_topology();

// Reads the kernel's list (/sys/class/net) and the addresses that are up.
std::vector<NetworkInterface> read_interfaces(const std::filesystem::path& list,
                                              const std::vector<InterfaceAddress>& addresses);

std::string text_of(const Topology& topology);
std::string json_of(const Topology& topology);

}  // namespace lockstep::launch
