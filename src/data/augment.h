// What training does to an image before the network sees it, as a pure function of a random sequence.
#pragma once

#include <cstdint>

#include "lockstep/data/augment_kernels.h"
#include "lockstep/tensor/random.h"

namespace lockstep::data {

// Random crop and flip, brightness by up to +-63, contrast by 0.2 to 1.8 about each channel's mean (the recipe of
// TensorFlow's CIFAR-10 tutorial). AugmentKernels apply it.
Augmentation draw_augmentation(std::int64_t side, std::int64_t crop, Philox& random);

// The middle of the image as it is.
Augmentation centre_crop(std::int64_t side, std::int64_t crop);

}  // namespace lockstep::data
