// Square colour images and their augmentation, on the CPU or, for a GPU's batches, on the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "lockstep/data/dataset.h"
#include "lockstep/tensor/random.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// How an image is changed before the network sees it: a random crop of the padded image, a flip, brightness, contrast,
// normalization.
struct ImageAugmentation {
  std::int64_t crop = 0;     // side of the resulting images in pixels; 0: as large as the stored images
  std::int64_t padding = 0;  // black pixels (0) on each side of the image, which a random crop may include
  bool random_crop = false;  // crop anywhere in the padded image; else at its centre
  bool flip = false;         // mirror left and right with probability 1/2
  float brightness = 0;      // add a value between -brightness and brightness, in units of 0..255
  float contrast_low = 1;    // multiply the distance from each channel's mean by a value between the two
  float contrast_high = 1;
  ImageNormalization normalization = {};  // applied last; by default each image on its own

  // TensorFlow's CIFAR-10 tutorial: a 24 x 24 crop, flip, brightness 63, contrast 0.2 to 1.8.
  static ImageAugmentation tutorial();
  // He et al., "Deep Residual Learning for Image Recognition" (2016), section 4.2: 4 pixels of padding, a crop of the
  // image's size, flip.
  static ImageAugmentation resnet(std::int64_t side = 32);
  // For evaluation: the centre, with no change except the normalization.
  static ImageAugmentation centre(std::int64_t crop, const ImageNormalization& normalization = {}) {
    return {.crop = crop, .normalization = normalization};
  }
};

// (x / 255 - mean) / deviation with the numbers of red, green and blue, usually those of the training set. Means of 0
// and deviations of 1 leave values in 0..1.
ImageNormalization normalize_channels(const std::array<float, 3>& mean, const std::array<float, 3>& deviation);

// Draws the augmentation of one image of `side` by `recipe`. The kernels of augment_kernels.h apply it.
Augmentation draw_augmentation(const ImageAugmentation& recipe, std::int64_t side, Philox& random);

// Base of data sets of square colour images with one label each. Samples are {(crop, crop, 3) float32, () int64}. The
// augmentation is drawn from (seed, epoch, index), so it is the same on every device and with any number of ranks.
class ImageDataset : public FixedShapeDataset, public ImageSource {
 public:
  // Throws InvalidArgument for a crop below 1 or larger than the padded image, a negative padding, images or padding of
  // 2^30 pixels or more, a contrast whose low is above its high, a negative brightness, a deviation that is not above
  // 0, and for any of these numbers that is infinite or NaN.
  ImageDataset(std::int64_t side, const ImageAugmentation& recipe, std::uint64_t seed);

  std::vector<TensorSpec> element_spec() const override;
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;
  const ImageSource* images() const override { return this; }
  std::int64_t side() const override { return side_; }
  std::int64_t crop() const override { return recipe_.crop; }
  ImageNormalization normalization() const override { return recipe_.normalization; }
  void read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                  std::int64_t& target) const override;

 protected:
  struct Stored {
    const std::uint8_t* planes;  // (3, side, side): red, green, blue; owned by the data set
    std::int64_t label;
  };
  virtual Stored stored(std::int64_t index) const = 0;

 private:
  Augmentation augmentation_of(std::int64_t index, std::int64_t epoch) const;

  std::int64_t side_;
  ImageAugmentation recipe_;
  std::uint64_t seed_;
};

// Images held in memory.
class ImageTensors : public ImageDataset {
 public:
  // `images` (N, 3, side, side) uint8 and `labels` (N) int64, on the CPU; the set shares their memory. Throws
  // InvalidArgument for other shapes, types or devices, and where ImageDataset does.
  ImageTensors(const Tensor& images, const Tensor& labels, const ImageAugmentation& recipe = {},
               std::uint64_t seed = 0);
  std::int64_t size() const override { return labels_.count(); }

 protected:
  Stored stored(std::int64_t index) const override;

 private:
  Tensor images_, labels_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
