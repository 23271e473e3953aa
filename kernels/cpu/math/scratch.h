// Memory of a kernel for the time of one call, from the device's allocator, so that its statistics include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/core/device.h"

namespace lockstep {

class Scratch {
 public:
  explicit Scratch(std::int64_t floats)
      : buffer_(cpu_device().allocate(static_cast<std::size_t>(floats) * sizeof(float))) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

class Zeros : public Scratch {
 public:
  explicit Zeros(std::int64_t floats) : Scratch(floats) { std::fill_n(data(), floats, 0.0F); }
};

}  // namespace lockstep
