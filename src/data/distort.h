// What training does to a picture before the network sees it: pure functions of the picture and a random sequence.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/tensor/random.h"

namespace lockstep::data {

// A picture in CIFAR-10's layout: three planes, row-major.
struct PlanarPicture {
  const std::uint8_t* pixels;
  std::int64_t side;  // 32
};

// A crop x crop window at (top, left), mirrored or not, as (crop, crop, 3) floats of 0..255.
void crop_picture(const PlanarPicture& picture, std::int64_t top, std::int64_t left, std::int64_t crop, bool mirrored,
                  std::span<float> out);

// Random crop and flip, brightness by up to +-63, contrast by 0.2 to 1.8 about each channel's mean (the recipe of
// TensorFlow's CIFAR-10 tutorial).
void distort_picture(const PlanarPicture& picture, std::int64_t crop, Philox& random, std::span<float> out);

// x = (x - mean) / max(deviation, 1 / sqrt(count)) over the whole picture.
void standardise(std::span<float> picture);

}  // namespace lockstep::data
