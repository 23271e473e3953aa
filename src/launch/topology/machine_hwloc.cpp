// Reads the machine's structure with hwloc.
#include <hwloc.h>
#include <hwloc/distances.h>

#include <algorithm>
#include <memory>

#include "lockstep/core/error.h"
#include "src/launch/topology/machine.h"

namespace lockstep::launch {

namespace {

constexpr unsigned kAtMost = 16;  // number of kinds of distances that are checked

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, Destroy>;

HwlocTopology load(const std::string& xml, bool ask_nvml) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error("hwloc does not start");
  HwlocTopology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  // Disables plugins that start drivers or threads, since the launcher must have neither. Without "pci", which needs
  // another library and leaks memory, hwloc finds the same devices in /sys.
  for (const char* plugin : {"cuda", "opencl", "rsmi", "levelzero", "gl", "pci"})
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  if (!ask_nvml) hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "nvml");
  if (!xml.empty() && hwloc_topology_set_xmlbuffer(raw, xml.c_str(), static_cast<int>(xml.size() + 1)) != 0)
    throw FileError("hwloc does not read this topology");
  if (hwloc_topology_load(raw) != 0) throw FileError("hwloc does not know this machine");
  return topology;
}

std::vector<int> members(hwloc_const_bitmap_t bits) {
  std::vector<int> numbers;
  if (bits == nullptr || hwloc_bitmap_weight(bits) < 0) return numbers;
  for (int i = hwloc_bitmap_first(bits); i >= 0; i = hwloc_bitmap_next(bits, i)) numbers.push_back(i);
  return numbers;
}

Path path_through(hwloc_obj_t common) {
  if (common->type == HWLOC_OBJ_BRIDGE)
    return common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? Path::kSameSwitch : Path::kSameHostBridge;
  return hwloc_bitmap_weight(common->nodeset) == 1 ? Path::kSameNumaNode : Path::kAcrossNumaNodes;
}

class HwlocMachine : public Machine {
 public:
  explicit HwlocMachine(HwlocTopology topology) : topology_(std::move(topology)) {}

  std::string unknown_because() const override { return ""; }

  std::vector<NumaNode> nodes() const override {
    std::vector<NumaNode> nodes;
    hwloc_obj_t node = nullptr;
    while ((node = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr)
      nodes.push_back({static_cast<int>(node->os_index), members(node->cpuset), node->attr->numanode.local_memory});
    return nodes;
  }

  NearDevice near(const std::string& pci) const override {
    const hwloc_obj_t device = find(pci);
    if (device == nullptr) return {};
    const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology_.get(), device);
    return {members(place->cpuset), members(place->nodeset)};
  }

  Path path(const std::string& pci, const std::string& other) const override {
    const hwloc_obj_t from = find(pci), to = find(other);
    if (from == nullptr || to == nullptr) return Path::kUnknown;
    for (hwloc_obj_t up = from->parent; up != nullptr; up = up->parent)
      for (hwloc_obj_t each = to->parent; each != nullptr; each = each->parent)
        if (each == up) return path_through(up);
    return Path::kUnknown;
  }

  std::optional<std::size_t> nvlink_mb(const std::string& pci, const std::string& other) const override {
    const hwloc_obj_t from = find(pci), to = find(other);
    if (from == nullptr || to == nullptr) return std::nullopt;
    unsigned count = kAtMost;
    hwloc_distances_s* found[kAtMost] = {};
    if (hwloc_distances_get_by_name(topology_.get(), "NVLinkBandwidth", &count, found, 0) != 0) return std::nullopt;
    std::optional<std::size_t> speed;
    for (unsigned i = 0; i < std::min(count, kAtMost); ++i) {
      const int a = index_of(*found[i], from), b = index_of(*found[i], to);
      if (a >= 0 && b >= 0)
        speed = found[i]->values[static_cast<unsigned>(a) * found[i]->nbobjs + static_cast<unsigned>(b)];
      hwloc_distances_release(topology_.get(), found[i]);
    }
    return speed == 0 ? std::nullopt : speed;
  }

 private:
  hwloc_obj_t find(const std::string& pci) const {
    return hwloc_get_pcidev_by_busidstring(topology_.get(), pci.c_str());
  }

  // NVML's devices are children of their PCI device.
  static int index_of(const hwloc_distances_s& distances, hwloc_obj_t pci_device) {
    for (unsigned i = 0; i < distances.nbobjs; ++i)
      for (hwloc_obj_t up = distances.objs[i]; up != nullptr; up = up->parent)
        if (up == pci_device) return static_cast<int>(i);
    return -1;
  }

  HwlocTopology topology_;
};

}  // namespace

std::unique_ptr<Machine> read_machine(const std::string& xml, bool ask_nvml) {
  return std::make_unique<HwlocMachine>(load(xml, ask_nvml));
}

}  // namespace lockstep::launch
