// The family of kernels that make inputs of images: see core/kernel_families.h.
#pragma once

#include <cstdint>

#include "lockstep/core/kernels.h"

namespace lockstep::data {

// Square images of three planes of bytes, of which a crop is taken.
struct ImageShape {
  std::int64_t batch, side, crop;
};

// The augmentation of one image. Drawn on the host, where the sample's random numbers are known.
struct Augmentation {
  std::int32_t top, left;  // of the crop
  std::int32_t mirrored;   // 0 or 1
  float brightness;        // is added
  float contrast;          // x = (x - m) * contrast + m, where m is the mean of the crop's channel
};

// By the conventions of core/kernels.h.
struct AugmentKernels {
  static constexpr const char* kFamily = "augment";

  // Planes (batch, 3, side, side) to out (batch, crop, crop, 3): crop, mirror, brightness, contrast, then
  // x = (x - mean) / max(deviation, 1 / sqrt(count)) over the whole image.
  void (*augment)(const ImageShape&, const std::uint8_t* planes, const Augmentation* each, float* out, Stream&);
};

}  // namespace lockstep::data
