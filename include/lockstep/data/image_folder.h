// Images in files: JPEG (by libjpeg-turbo) and PNG (by libpng), and data sets of folders of them.
//
//   const ls::data::ImageFolder train("imagenet/train", {.size = 224, .augment = true});
//   const ls::data::ImageFolder test("imagenet/val", {.size = 224});
//
// A build without these libraries (-Dimages, see docs/data.md) throws InvalidArgument that names them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/images.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

// The largest image that read_image() decodes unless told otherwise. It stops a small file from filling the memory.
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 27;

// Returns the pixels of a JPEG or PNG file, (height, width, 3) uint8 on the CPU: red, green, blue. The first bytes
// decide which format it is, not the name. A grey image has three equal values, transparency is dropped, and a JPEG in
// CMYK is converted without a colour profile: the values are those of Pillow's Image.open(path).convert("RGB"), except
// for PNG files that state a gamma or have 16 bits, which are converted to 8 bits of sRGB. The orientation that a
// camera wrote is ignored, as in Pillow. Throws FileError with the path for a missing file, another format, damaged or
// truncated pixels, and more than `max_pixels`. Damage to other parts of a PNG file, such as its texts or its colour
// profile, is ignored.
Tensor read_image(const std::string& path, std::int64_t max_pixels = kMaxImagePixels);

// Returns the image (H, W, C) uint8, on the CPU, in another size: bilinear, over all pixels that an output pixel
// covers when it shrinks. The bits are those of resize(..., BILINEAR) of Pillow, and so of torchvision's Resize of
// an image; Pillow 13 resizes tall images in another order of dimensions, and differs by at most two levels. Throws
// InvalidArgument for another type, device or number of dimensions, an empty image, and a size that
// is not from 1 to 2^20.
Tensor resize_image(const Tensor& image, std::int64_t height, std::int64_t width);

struct ImageFolderOptions {
  std::int64_t size = 224;  // the side of the samples in pixels, at most 2^14
  // false: the shorter side is resized to size * `resize`, and the centre is taken. true: a random part of the image
  // is resized to size x size, the next options apply, and the sample is mirrored (Szegedy et al., "Going Deeper with
  // Convolutions", 2015, section 6; torchvision's RandomResizedCrop and RandomHorizontalFlip).
  bool augment = false;
  float resize = 256.0f / 224;
  float scale_low = 0.08f, scale_high = 1;            // the part's share of the image's area
  float ratio_low = 3.0f / 4, ratio_high = 4.0f / 3;  // its width / height, drawn evenly over the logarithm
  float flip = 0.5f;                                  // probability
  // Factors between 1 - value and 1 + value, in this order: all values; their distance to the image's mean grey;
  // their distance to the pixel's grey. Values stay in 0..255.
  float brightness = 0, contrast = 0, saturation = 0;
  // The numbers that torchvision's models expect.
  ImageNormalization normalization = normalize_channels({0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f});
  std::int64_t max_pixels = kMaxImagePixels;
  std::uint64_t seed = 0;  // of the augmentation, which is drawn from (seed, epoch, index)
};

// The images in FOLDER/CLASS/**: names that end in .jpg, .jpeg or .png, in either case. Classes are numbered in the
// order of their folders' names, as in torchvision, and samples are in the order of their paths. Samples are {(size,
// size, 3) float32, () int64}. Files are decoded when a sample is read: give the loader num_workers. Copies share the
// list.
class ImageFolder : public FixedShapeDataset {
 public:
  // Lists the folder; reads no image. Throws FileError for a folder that does not exist, that has no folder of a
  // class, and for a class without images (by name); InvalidArgument for options out of range.
  explicit ImageFolder(const std::string& folder, const ImageFolderOptions& options = {});
  std::int64_t size() const override;
  std::vector<TensorSpec> element_spec() const override;
  // Throws FileError as read_image() does.
  void read(std::int64_t index, std::int64_t epoch, const Row& row) const override;

  const std::vector<std::string>& classes() const;    // names of folders, by label
  const std::string& path(std::int64_t index) const;  // throws InvalidArgument for an index out of range
  std::int64_t label(std::int64_t index) const;

 private:
  struct List;
  std::shared_ptr<const List> list_;
  ImageFolderOptions options_;
};

}  // namespace lockstep::data
#pragma GCC visibility pop
