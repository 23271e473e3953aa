#include "src/launch/topology/topology.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/device/device_choice.h"
#include "src/launch/topology/gpu_probe.h"
#include "src/launch/topology/gpus.h"

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

// An address for documentation (RFC 5737), which is reached by the default route.
constexpr const char* kAnywhere = "192.0.2.1";
constexpr int kAnyPort = 9;
constexpr auto kNameTime = std::chrono::seconds(10);

template <typename Value> std::optional<Value> read_value(const fs::path& file) {
  std::ifstream stream(file);
  Value value{};
  return stream >> value ? std::optional(value) : std::nullopt;
}

void read_gpus(Topology& topology) {
  try {
    GpuSearch found = find_gpus_apart();
    topology.gpus = std::move(found.gpus);
    topology.why_no_gpus = std::move(found.why_none);
  } catch (const Error& error) {
    topology.why_no_gpus = error.what();
  }
}

void read_links(const Machine& machine, Topology& topology) {
  topology.why_no_nodes = machine.unknown_because();
  topology.nodes = machine.nodes();
  const auto& gpus = topology.gpus;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    topology.gpu_nodes.push_back(machine.near(gpus[i].pci).nodes);
    for (std::size_t j = i + 1; j < gpus.size(); ++j)
      topology.links.push_back({gpus[i].ordinal, gpus[j].ordinal, machine.path(gpus[i].pci, gpus[j].pci),
                                machine.nvlink_mb(gpus[i].pci, gpus[j].pci)});
  }
}

// The same choice as in the ranks; a failure here would be a failure there.
void choose_interface(const std::vector<InterfaceAddress>& addresses, Topology& topology) {
  const auto wanted = env::text(env::kInterface), host = env::text(env::kMasterAddr);
  try {
    std::string address;
    if (wanted) {
      address = choose_address(*wanted, addresses, "");
      topology.used_why = fmt::format("{}={}", env::kInterface, *wanted);
    } else {
      address = address_towards(host.value_or(kAnywhere), kAnyPort, std::chrono::steady_clock::now() + kNameTime);
      topology.used_why =
          host ? fmt::format("the route to {}={}", env::kMasterAddr, *host)
               : fmt::format("the default route; {} or {} may say otherwise", env::kInterface, env::kMasterAddr);
    }
    for (const InterfaceAddress& each : addresses)
      if (each.address == address) topology.used = each.interface;
    if (topology.used.empty()) topology.used_why = fmt::format("no interface has the address {}", address);
  } catch (const Error& error) {
    topology.used_why = error.what();
  }
}

// "0-3, 8"
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

const char* words_of(Path path) {
  switch (path) {
    case Path::kSameSwitch: return "one PCIe switch";
    case Path::kSameHostBridge: return "one PCIe host bridge";
    case Path::kSameNumaNode: return "one NUMA node";
    case Path::kAcrossNumaNodes: return "across NUMA nodes";
    case Path::kUnknown: break;
  }
  return "not known";
}

std::string gpus_text(const Topology& topology) {
  if (topology.gpus.empty()) return fmt::format("  none: {}\n", topology.why_no_gpus);
  std::string text;
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    const cuda::Gpu& gpu = topology.gpus[i];
    const auto& nodes = topology.gpu_nodes[i];
    text +=
        fmt::format("  {}: {}, {:.1f} GB, compute capability {}.{}, PCI {}, NUMA node {}, {}\n", gpu.ordinal, gpu.name,
                    static_cast<double>(gpu.memory_bytes) / kGigabyte, gpu.compute_major, gpu.compute_minor, gpu.pci,
                    nodes.size() == 1 ? std::to_string(nodes[0]) : "not known", gpu.uuid);
  }
  return text;
}

std::string links_text(const Topology& topology) {
  if (topology.links.empty())
    return fmt::format("  none: {} GPU{}\n", topology.gpus.size(), topology.gpus.size() == 1 ? "" : "s");
  std::string text;
  bool has_nvlink = false;
  for (const GpuLink& link : topology.links) {
    text += fmt::format("  {} - {}: {}", link.from, link.to, words_of(link.path));
    if (link.nvlink_mb) text += fmt::format(", NVLink {:.0f} GB/s", static_cast<double>(*link.nvlink_mb) / 1e3);
    text += '\n';
    has_nvlink = has_nvlink || link.nvlink_mb.has_value();
  }
  return has_nvlink ? text : text + "  NVLink: not known (install hwloc's NVML plugin, or run nvidia-smi topo -m)\n";
}

std::string nodes_text(const Topology& topology) {
  if (topology.nodes.empty()) return fmt::format("  not known: {}\n", topology.why_no_nodes);
  std::string text;
  for (const NumaNode& node : topology.nodes)
    text += fmt::format("  {}: cores {}; {:.1f} GB\n", node.number, ranges(node.cores),
                        static_cast<double>(node.memory_bytes) / kGigabyte);
  return text;
}

std::string interfaces_text(const Topology& topology) {
  std::string text;
  for (const NetworkInterface& each : topology.interfaces) {
    text += fmt::format("  {}: {}, {}", each.name, each.state,
                        each.mbit ? fmt::format("{} Mb/s", *each.mbit) : "speed not known");
    if (each.node) text += fmt::format(", NUMA node {}", *each.node);
    for (const std::string& address : each.addresses) text += ", " + address;
    text += '\n';
  }
  return text + fmt::format("  between machines: {} ({})\n", topology.used.empty() ? "none" : topology.used,
                            topology.used_why);
}

}  // namespace

std::vector<NetworkInterface> read_interfaces(const fs::path& list, const std::vector<InterfaceAddress>& addresses) {
  std::vector<NetworkInterface> interfaces;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(list, failure)) {
    if (!fs::exists(entry.path() / "operstate", failure)) continue;  // bonding_masters is not an interface
    NetworkInterface each;
    each.name = entry.path().filename();
    each.state = read_value<std::string>(entry.path() / "operstate").value_or("unknown");
    each.mbit = read_value<long>(entry.path() / "speed");
    if (each.mbit && *each.mbit <= 0) each.mbit.reset();
    each.node = read_value<int>(entry.path() / "device/numa_node");
    if (each.node && *each.node < 0) each.node.reset();
    for (const InterfaceAddress& known : addresses)
      if (known.interface == each.name && !known.address.empty()) each.addresses.push_back(known.address);
    interfaces.push_back(std::move(each));
  }
  std::sort(interfaces.begin(), interfaces.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return interfaces;
}

Topology read_topology() {
  Topology topology;
  read_gpus(topology);
  read_links(*read_machine("", !topology.gpus.empty()), topology);
  const std::vector<InterfaceAddress> addresses = interface_addresses();
  topology.interfaces = read_interfaces("/sys/class/net", addresses);
  choose_interface(addresses, topology);
  return topology;
}

std::string text_of(const Topology& topology) {
  return "GPUs\n" + gpus_text(topology) + "links between GPUs\n" + links_text(topology) + "NUMA nodes\n" +
         nodes_text(topology) + "network interfaces\n" + interfaces_text(topology);
}

std::string json_of(const Topology& topology) {
  using nlohmann::json;
  const auto or_null = [](const auto& value) { return value ? json(*value) : json(nullptr); };
  json all = {
      {"gpus", json::array()}, {"links", json::array()}, {"numa_nodes", json::array()}, {"interfaces", json::array()}};
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) {
    const cuda::Gpu& gpu = topology.gpus[i];
    all["gpus"].push_back({{"ordinal", gpu.ordinal},
                           {"name", gpu.name},
                           {"uuid", gpu.uuid},
                           {"pci", gpu.pci},
                           {"memory_bytes", gpu.memory_bytes},
                           {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
                           {"numa_nodes", topology.gpu_nodes[i]}});
  }
  for (const GpuLink& link : topology.links)
    all["links"].push_back({{"from", link.from},
                            {"to", link.to},
                            {"path", words_of(link.path)},
                            {"nvlink_mb_s", or_null(link.nvlink_mb)}});
  for (const NumaNode& node : topology.nodes)
    all["numa_nodes"].push_back({{"number", node.number}, {"cores", node.cores}, {"memory_bytes", node.memory_bytes}});
  for (const NetworkInterface& each : topology.interfaces)
    all["interfaces"].push_back({{"name", each.name},
                                 {"state", each.state},
                                 {"mbit_s", or_null(each.mbit)},
                                 {"numa_node", or_null(each.node)},
                                 {"addresses", each.addresses},
                                 {"between_machines", each.name == topology.used}});
  if (!topology.why_no_gpus.empty()) all["why_no_gpus"] = topology.why_no_gpus;
  if (!topology.why_no_nodes.empty()) all["why_no_numa_nodes"] = topology.why_no_nodes;
  return all.dump(2) + "\n";
}

}  // namespace lockstep::launch
