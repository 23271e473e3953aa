// Parts of images, also of resized ones. Images are (H, W, C) uint8 on the CPU, and not empty.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

// In pixels.
struct ImageExtents {
  std::int64_t height, width;
};
struct ImagePart {
  std::int64_t top, left, height, width;
};

// A copy of a part, which must lie within the image.
Tensor cut(const Tensor& image, const ImagePart& part);

// The part of the image that resize_image() makes in this size. Computes no other pixels, so the size may be larger
// than the memory.
Tensor resize_part(const Tensor& image, const ImageExtents& resized, const ImagePart& part);

}  // namespace lockstep::data
