// A batch of pictures as they travel to a device, in one piece of memory: what happens to each, then the planes of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/kernels.h"

namespace lockstep::data {

class PackedPictures {
 public:
  PackedPictures(const PictureShape& shape, std::byte* memory) : shape_(shape), memory_(memory) {}

  static std::size_t bytes(const PictureShape& shape) {
    return static_cast<std::size_t>(shape.batch) * (sizeof(Distortion) + bytes_of_picture(shape));
  }
  Distortion* each() const { return reinterpret_cast<Distortion*>(memory_); }
  std::uint8_t* planes() const {
    return reinterpret_cast<std::uint8_t*>(memory_ + static_cast<std::size_t>(shape_.batch) * sizeof(Distortion));
  }
  std::span<std::uint8_t> planes_of(std::int64_t picture) const {
    return {planes() + static_cast<std::size_t>(picture) * bytes_of_picture(shape_), bytes_of_picture(shape_)};
  }

 private:
  static std::size_t bytes_of_picture(const PictureShape& shape) { return static_cast<std::size_t>(3 * shape.side * shape.side); }

  PictureShape shape_;
  std::byte* memory_;
};

}  // namespace lockstep::data
