// The request of Device::configure() and LOCKSTEP_LOGICAL_DEVICES: the number of logical devices of each physical one.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/logical_devices.h"
#include "src/core/device/device_choice.h"

namespace lockstep {

inline constexpr int kMaxLogicalDevices = 64;  // per physical device

// A GPU divided into `parts` of the same size, or one for each of `limits` (bytes).
struct GpuSplit {
  int parts = 1;
  std::vector<std::size_t> limits = {};
  bool operator==(const GpuSplit&) const = default;
};

struct DeviceConfiguration {
  int cpus = 1;
  std::map<int, GpuSplit> splits = {};  // by GPU
  std::optional<std::vector<int>> visible = {};
  std::optional<bool> grow = {};

  bool sees(int gpu) const;
  GpuSplit split_of(int gpu) const;
  bool operator==(const DeviceConfiguration&) const = default;
};

// Parses "cpu:2x", "cuda:0:2x", "cuda:0:1G+3G", or several of them separated by commas. Throws InvalidArgument that
// names `source` and the valid forms.
DeviceConfiguration parse_logical_devices(const std::string& source, const std::string& text);

// `before`, changed by `options`. Throws InvalidArgument for numbers that are invalid on any machine.
DeviceConfiguration changed_by(const DeviceConfiguration& before, const DeviceOptions& options);

// Throws InvalidArgument if a GPU does not exist, or if the limits add up to more than the GPU's memory.
void check_gpus_exist(const DeviceConfiguration& configuration, const GpuSearch& found);

// "cuda:0" for an undivided GPU, "cuda:0/1" for a part.
std::string gpu_device_name(int gpu, const GpuSplit& split, int part);

}  // namespace lockstep
