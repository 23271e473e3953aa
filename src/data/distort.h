// What training does to a picture before the network sees it, as a pure function of a random sequence.
#pragma once

#include <cstdint>

#include "lockstep/core/kernels.h"
#include "lockstep/tensor/random.h"

namespace lockstep::data {

// Random crop and flip, brightness by up to +-63, contrast by 0.2 to 1.8 about each channel's mean (the recipe of
// TensorFlow's CIFAR-10 tutorial). The device's `distort` applies it.
Distortion draw_distortion(std::int64_t side, std::int64_t crop, Philox& random);

// The middle of the picture as it is.
Distortion centre_crop(std::int64_t side, std::int64_t crop);

}  // namespace lockstep::data
