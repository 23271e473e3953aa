// The structure of this machine: NUMA nodes, their cores, and which of them are near a PCI device. hwloc reads it;
// without hwloc it is unknown.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

struct NumaNode {
  int number = 0;
  std::vector<int> cores;
  std::size_t memory_bytes = 0;
};

// The path between two devices, the shortest first.
enum class Path { kSameSwitch, kSameHostBridge, kSameNumaNode, kAcrossNumaNodes, kUnknown };

struct NearDevice {
  std::vector<int> cores;  // empty: unknown
  std::vector<int> nodes;
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::string unknown_because() const = 0;  // empty: it is known
  virtual std::vector<NumaNode> nodes() const = 0;
  // `pci` as "0000:17:00.0". A device that does not exist is near nothing.
  virtual NearDevice near(const std::string& pci) const = 0;
  virtual Path path(const std::string& pci, const std::string& other) const = 0;
  // MB/s of NVLink from one to the other; nullopt: hwloc was built without NVML, or there is no such link.
  virtual std::optional<std::size_t> nvlink_mb(const std::string& pci, const std::string& other) const = 0;
};

// `xml`: a machine in hwloc's format (lstopo --of xml), for tests; empty: this machine. `ask_nvml`: include the links
// between GPUs, which starts the driver in this process. Throws FileError for an invalid XML.
std::unique_ptr<Machine> read_machine(const std::string& xml = "", bool ask_nvml = false);

}  // namespace lockstep::launch
