// The memory layout of a batch of images on its way to a device: the augmentation of each image, then the planes of
// all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/data/augment_kernels.h"

namespace lockstep::data {

class PackedImages {
 public:
  PackedImages(const ImageShape& shape, std::byte* memory) : shape_(shape), memory_(memory) {}

  static std::size_t bytes(const ImageShape& shape) {
    return static_cast<std::size_t>(shape.batch) * (sizeof(Augmentation) + bytes_of_image(shape));
  }
  Augmentation* each() const { return reinterpret_cast<Augmentation*>(memory_); }
  std::uint8_t* planes() const {
    return reinterpret_cast<std::uint8_t*>(memory_ + static_cast<std::size_t>(shape_.batch) * sizeof(Augmentation));
  }
  std::span<std::uint8_t> planes_of(std::int64_t image) const {
    return {planes() + static_cast<std::size_t>(image) * bytes_of_image(shape_), bytes_of_image(shape_)};
  }

 private:
  static std::size_t bytes_of_image(const ImageShape& shape) {
    return static_cast<std::size_t>(3 * shape.side * shape.side);
  }

  ImageShape shape_;
  std::byte* memory_;
};

}  // namespace lockstep::data
