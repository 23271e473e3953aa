// Logical devices: one physical device as several devices of one process, which compute side by side and share nothing.
//
// For strategies that drive several devices from one process (train/strategy.h), and to try such a program where there
// is one device. A process of its own for each device needs none of this: lockrun --share-gpu K gives each rank its
// part.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep {

// What Device::configure() changes; a member that is not set changes nothing.
struct DeviceOptions {
  std::optional<int> cpu = {};  // the CPU as so many devices, "cpu:0", "cpu:1", ...; they share its cores
  std::optional<int> gpu = {};  // the GPU that `memory` splits, by number
  // A logical device for each entry, "cuda:0/0", "cuda:0/1", ..., with so much memory at most: "1G", "512M", "1000000"
  // (bytes).
  std::vector<std::string> memory = {};
  std::optional<std::vector<int>> visible =
      {};                         // the GPUs that this process uses, by number; the others are not there for it
  std::optional<bool> grow = {};  // GPUs' memory as needed (the default), or all that is free at the start
};

// A processor or GPU of this machine, before anything is split.
struct PhysicalDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  std::string name;              // "cpu", "cuda:0"
  std::string description;       // "8 cores", "NVIDIA H200"
  std::size_t memory_bytes = 0;  // of a GPU; 0: not known here
};
// The CPU, then the visible GPUs. Makes no context on a GPU. Throws Error when there are GPUs that cannot be used.
std::vector<PhysicalDevice> physical_devices();

// All devices of this process: the CPU's, then those of the visible GPUs in order, each of which is made by this call.
// From the first use of a kind on, by this call or any other, Device::configure() cannot change that kind any more.
std::vector<Device*> logical_devices();
// The same of one kind alone: logical_devices(DeviceKind::kCpu) leaves the GPUs as they are.
std::vector<Device*> logical_devices(DeviceKind kind);

// "cpu", "cpu:1", "cuda:0", "cuda:0/1". Throws InvalidArgument that lists what there is.
Device& device_named(const std::string& name);

// For people, "1 physical CPU, 2 logical; no GPU: no NVIDIA driver is installed": what was configured, without making a
// device.
std::string describe_devices();

}  // namespace lockstep
#pragma GCC visibility pop
