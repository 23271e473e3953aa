// Square colour images and their augmentation, on the CPU or, for batches of a GPU, there.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "lockstep/data/dataset.h"
#include "lockstep/tensor/random.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// What happens to an image before the network sees it: a random crop of the padded image, a flip, brightness, contrast,
// normalization.
struct ImageAugmentation {
  std::int64_t crop = 0;     // side of the images that come out; 0: as large as they are
  std::int64_t padding = 0;  // black pixels (0) on each side of the image, out of which a random crop may reach
  bool random_crop = false;  // from any place of the padded image; else its centre
  bool flip = false;         // mirrors left and right, every second image
  float brightness = 0;      // adds a value between -brightness and brightness, of 0..255
  float contrast_low = 1;    // multiplies the distance from each channel's mean by a value between the two
  float contrast_high = 1;
  ImageNormalization normalization = {};  // of the values that all this leaves; else each image by itself

  // A 24 x 24 crop, flip, brightness 63, contrast 0.2 to 1.8: TensorFlow's CIFAR-10 tutorial.
  static ImageAugmentation tutorial();
  // 4 pixels of padding, a crop of the image's size, flip: He et al., "Deep Residual Learning for Image Recognition"
  // (2016), section 4.2.
  static ImageAugmentation resnet(std::int64_t side = 32);
  // The centre, unchanged but for the normalization: for evaluation.
  static ImageAugmentation centre(std::int64_t crop, const ImageNormalization& normalization = {}) {
    return {.crop = crop, .normalization = normalization};
  }
};

// (x / 255 - mean) / deviation with the numbers of red, green and blue, those of the training set as a rule. {0, 0, 0}
// and {1, 1, 1} leave values in 0..1.
ImageNormalization normalize_channels(const std::array<float, 3>& mean, const std::array<float, 3>& deviation);

// Draws what `recipe` does to one image of `side`. The kernels of augment_kernels.h apply it.
Augmentation draw_augmentation(const ImageAugmentation& recipe, std::int64_t side, Philox& random);

// Base of data sets of square colour images with a label each. Samples are {(crop, crop, 3) float32, () int64}. The
// augmentation is drawn from (seed, epoch, index): the same on every device and whatever the rank count.
class ImageDataset : public FixedShapeDataset, public ImageSource {
 public:
  // Throws InvalidArgument for a crop that is larger than the padded image, or below 1, a negative padding, images or
  // padding of 2^30 pixels and more, a contrast whose low is above its high, a brightness below 0, a deviation that is
  // not above 0, or one of these numbers that is infinite or none.
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
    const std::uint8_t* planes;  // (3, side, side): red, green, blue; stays the data set's
    std::int64_t label;
  };
  virtual Stored stored(std::int64_t index) const = 0;

 private:
  Augmentation augmentation_of(std::int64_t index, std::int64_t epoch) const;

  std::int64_t side_;
  ImageAugmentation recipe_;
  std::uint64_t seed_;
};

// Images in memory.
class ImageTensors : public ImageDataset {
 public:
  // `images` (N, 3, side, side) uint8 and `labels` (N) int64, on the CPU; the memory is shared with the caller's
  // tensors. Throws InvalidArgument for other shapes, types or devices, and as ImageDataset.
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
