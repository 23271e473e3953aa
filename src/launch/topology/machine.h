// The shape of this machine: NUMA nodes, their cores, and what is near which PCI device. hwloc reads it; without hwloc
// it is not known.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

inline constexpr double kGigabyte = 1e9;  // of memory in reports, as vendors count it

struct NumaNode {
  int number = 0;
  std::vector<int> cores;
  std::size_t memory_bytes = 0;
};

// The way between two devices, the nearest first.
enum class Path { kSameSwitch, kSameHostBridge, kSameNumaNode, kAcrossNumaNodes, kUnknown };

struct NearDevice {
  std::vector<int> cores;  // empty: not known
  std::vector<int> nodes;
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::string unknown_because() const = 0;  // empty: it is known
  virtual std::vector<NumaNode> nodes() const = 0;
  // `pci` as "0000:17:00.0". A device that is not there is near nothing.
  virtual NearDevice near(const std::string& pci) const = 0;
  virtual Path path(const std::string& pci, const std::string& other) const = 0;
  // MB/s of NVLink from one to the other; absent: hwloc was not built with NVML, or knows no such link.
  virtual std::optional<std::size_t> nvlink_mb(const std::string& pci, const std::string& other) const = 0;
};

// `xml`: a machine as hwloc writes it (lstopo --of xml), for tests; empty: this one. `ask_nvml`: links between GPUs
// too, which starts the driver in this process. Throws FileError for an XML that hwloc does not read.
std::unique_ptr<Machine> read_machine(const std::string& xml = "", bool ask_nvml = false);

}  // namespace lockstep::launch
