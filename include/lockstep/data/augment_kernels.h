// The kernel family that makes model inputs from images: see core/kernel_families.h.
#pragma once

#include <cstdint>

#include "lockstep/core/kernels.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// A batch of square images as three byte planes each, from which a square crop is taken. Extents are in pixels.
struct ImageShape {
  std::int64_t batch, side, crop;
};

// The augmentation of one image. It is drawn on the host, which knows the sample's random numbers.
struct Augmentation {
  std::int32_t top, left;  // corner of the crop; the parts of the crop outside the image are black (0)
  std::int32_t mirrored;   // 0 or 1
  float brightness;        // added to each value
  float contrast;          // x = (x - m) * contrast + m, where m is the mean of the crop's channel
};

// The last step: how values in 0..255 are normalized. Only kPerChannel uses `mean` and `deviation`: red, green, blue,
// for values in 0..1.
struct ImageNormalization {
  enum class Kind : std::int32_t {
    kPerImage,   // (x - mean) / max(deviation, 1 / sqrt(count)), over all values of the image
    kPerChannel  // (x / 255 - mean) / deviation
  };
  Kind kind = Kind::kPerImage;
  float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};
};

// The conventions of core/operators.def apply.
struct AugmentKernels {
  static constexpr const char* kFamily = "augment";

  // Reads planes (batch, 3, side, side) and writes out (batch, crop, crop, 3): crop, mirror, brightness, contrast, then
  // normalization.
  void (*augment)(const ImageShape&, const ImageNormalization&, const std::uint8_t* planes, const Augmentation* each,
                  float* out, Stream&);
};

}  // namespace lockstep::data
#pragma GCC visibility pop
