// The family of kernels that make inputs of images: see core/kernel_families.h.
#pragma once

#include <cstdint>

#include "lockstep/core/kernels.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// Square images of three planes of bytes, of which a crop is taken.
struct ImageShape {
  std::int64_t batch, side, crop;
};

// The augmentation of one image. Drawn on the host, where the sample's random numbers are known.
struct Augmentation {
  std::int32_t top, left;  // of the crop, which may reach out of the image: it is black (0) there
  std::int32_t mirrored;   // 0 or 1
  float brightness;        // is added
  float contrast;          // x = (x - m) * contrast + m, where m is the mean of the crop's channel
};

// What the values of an image, 0..255, become last. `mean` and `deviation` are of kPerChannel alone: red, green, blue,
// of values in 0..1.
struct ImageNormalization {
  enum class Kind : std::int32_t {
    kPerImage,   // (x - mean) / max(deviation, 1 / sqrt(count)), over all values of the image
    kPerChannel  // (x / 255 - mean) / deviation
  };
  Kind kind = Kind::kPerImage;
  float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};
};

// By the conventions of core/operators.def.
struct AugmentKernels {
  static constexpr const char* kFamily = "augment";

  // Planes (batch, 3, side, side) to out (batch, crop, crop, 3): crop, mirror, brightness, contrast, then the
  // normalization.
  void (*augment)(const ImageShape&, const ImageNormalization&, const std::uint8_t* planes, const Augmentation* each,
                  float* out, Stream&);
};

}  // namespace lockstep::data
#pragma GCC visibility pop
