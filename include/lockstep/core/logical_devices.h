// Logical devices: one physical device divided into several devices of one process, which compute in parallel and share
// no memory.
//
// For strategies that drive several devices from one process (train/strategy.h), and to try such a program on a machine
// with one device. A job with one process per device does not need this: lockrun --share-gpu K gives each rank its
// part.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Settings of Device::configure(); members that are not set change nothing.
struct DeviceOptions {
  std::optional<int> cpu = {};  // divide the CPU into this many devices, "cpu:0", "cpu:1", ..., which share its cores
  std::optional<int> gpu = {};  // number of the GPU that `memory` divides
  // One logical device per entry, "cuda:0/0", "cuda:0/1", ..., with at most this much memory: "1G", "512M", "1000000"
  // (bytes).
  std::vector<std::string> memory = {};
  // Numbers of the GPUs that this process uses; it does not see the others.
  std::optional<std::vector<int>> visible = {};
  std::optional<bool> grow = {};  // true (default): allocate GPU memory as needed; false: all free memory at the start
  // TensorFlow's allow_soft_placement. True is refused with the reason: nothing moves to another device by itself.
  bool soft_placement = false;
};

// A processor or GPU of this machine, before any division.
struct PhysicalDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  std::string name;              // "cpu", "cuda:0"
  std::string description;       // "8 cores", "NVIDIA H200"
  std::size_t memory_bytes = 0;  // of a GPU; 0: unknown
};
// The CPU, then the visible GPUs. Creates no context on a GPU. Throws Error if there are GPUs that cannot be used.
std::vector<PhysicalDevice> physical_devices();

// All devices of this process: those of the CPU, then those of the visible GPUs in order. Creates each of them. After
// the first use of a kind, by this or any other call, Device::configure() cannot change that kind.
std::vector<Device*> logical_devices();
// The same for one kind: logical_devices(DeviceKind::kCpu) does not touch the GPUs.
std::vector<Device*> logical_devices(DeviceKind kind);

// Finds "cpu", "cpu:1", "cuda:0" or "cuda:0/1", or in TensorFlow's spelling "/gpu:0" or "/device:GPU:0"; case does not
// matter. "cpu" and "cpu:0", and "cuda", "cuda:0" and "gpu:0", name the first device, divided or not. Divided GPUs:
// "cuda:1" is the first part of GPU 1, as numbers after cuda are those of physical GPUs, and "gpu:1" is the second
// logical GPU, as in TensorFlow. Creates no other GPU's device. Throws InvalidArgument that lists the devices.
Device& device_named(const std::string& name);

// Describes the configuration, without creating a device: "1 physical CPU, 2 logical; no GPU: no NVIDIA driver is
// installed".
std::string describe_devices();

}  // namespace lockstep
#pragma GCC visibility pop
