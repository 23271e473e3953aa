// Reads the names of devices, as PyTorch and TensorFlow write them.
#pragma once

#include <optional>
#include <string>

#include "lockstep/core/device.h"

namespace lockstep {

struct DeviceName {
  DeviceKind kind = DeviceKind::kCpu;
  std::optional<int> number = {};  // nullopt: the first
  std::optional<int> part = {};    // of "cuda:0/1"
  // True for "cuda:N": the number is a physical GPU's, as in PyTorch. False for "gpu:N", where it counts the logical
  // GPUs, as in TensorFlow.
  bool is_physical = false;
  bool operator==(const DeviceName&) const = default;
};

// Reads "cpu", "cpu:1", "cuda", "cuda:0", "cuda:0/1", "gpu", "gpu:0", "/gpu:0" and "/device:GPU:0", in any case, also
// after "/job:localhost/replica:0/task:0". Returns nullopt for any other text.
std::optional<DeviceName> parse_device_name(const std::string& text);

}  // namespace lockstep
