// What Device::configure() and LOCKSTEP_LOGICAL_DEVICES ask for: into how many logical devices each physical one is
// split.
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

inline constexpr int kMaxLogicalDevices = 64;  // of one physical device

// A GPU as several: `parts` of the same size, or one for each of `limits` (bytes).
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

// "cpu:2x", "cuda:0:2x", "cuda:0:1G+3G", several of them with commas between. Throws InvalidArgument that names
// `source` and the forms.
DeviceConfiguration parse_logical_devices(const std::string& source, const std::string& text);

// What `options` make of `before`. Throws InvalidArgument for numbers that make no sense, whatever this machine has.
DeviceConfiguration changed_by(const DeviceConfiguration& before, const DeviceOptions& options);

// Throws InvalidArgument for a GPU that is not there, and for limits whose sum is above the GPU's memory.
void check_gpus_exist(const DeviceConfiguration& configuration, const GpuSearch& found);

// "cuda:0" of a GPU that is whole, "cuda:0/1" of a part.
std::string gpu_device_name(int gpu, const GpuSplit& split, int part);

}  // namespace lockstep
