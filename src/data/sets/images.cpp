#include "lockstep/data/images.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"
#include "src/data/sets/sample_stream.h"

namespace lockstep::data {

namespace {

void check_normalization(const ImageNormalization& by) {
  for (std::size_t channel = 0; channel < 3; ++channel)
    if (!std::isfinite(by.mean[channel]) || !std::isfinite(by.deviation[channel]) || !(by.deviation[channel] > 0))
      throw InvalidArgument(
          "ImageNormalization: mean {} and deviation {} of channel {}: expected finite numbers, the deviation above 0",
          by.mean[channel], by.deviation[channel], channel);
}

ImageAugmentation checked(ImageAugmentation recipe, std::int64_t side) {
  if (recipe.crop == 0) recipe.crop = side;
  constexpr std::int64_t kBeyond = std::int64_t{1} << 30;  // positions are 32 bits wide
  if (side < 1 || side >= kBeyond || recipe.padding < 0 || recipe.padding >= kBeyond || recipe.crop < 1 ||
      recipe.crop > side + 2 * recipe.padding)
    throw InvalidArgument(
        "ImageAugmentation: a crop of {} does not fit into images of side {} with {} pixels of padding on each side",
        recipe.crop, side, recipe.padding);
  if (!(recipe.contrast_low <= recipe.contrast_high) || !(recipe.brightness >= 0) ||
      !std::isfinite(recipe.contrast_low) || !std::isfinite(recipe.contrast_high) || !std::isfinite(recipe.brightness))
    throw InvalidArgument(
        "ImageAugmentation: contrast {} to {} and brightness {}: low must not be above high, "
        "brightness must not be negative, and all must be finite",
        recipe.contrast_low, recipe.contrast_high, recipe.brightness);
  check_normalization(recipe.normalization);
  return recipe;
}

std::int64_t checked_side(const Tensor& images, const Tensor& labels) {
  const Shape &shape = images.shape(), &label_shape = labels.shape();
  if (shape.dims() != 4 || shape[1] != 3 || shape[2] != shape[3] || label_shape.dims() != 1 ||
      label_shape[0] != shape[0] || images.dtype() != DType::kUInt8 || labels.dtype() != DType::kInt64)
    throw InvalidArgument(
        "ImageTensors: expected images (N, 3, side, side) uint8 and labels (N) int64, got {} {} and {} {}",
        shape.text(), name_of(images.dtype()), label_shape.text(), name_of(labels.dtype()));
  images.span<std::uint8_t>();  // throws when not on the CPU
  labels.span<std::int64_t>();
  return shape[3];
}

}  // namespace

ImageAugmentation ImageAugmentation::tutorial() {
  return {.crop = 24, .random_crop = true, .flip = true, .brightness = 63, .contrast_low = 0.2f, .contrast_high = 1.8f};
}

ImageAugmentation ImageAugmentation::resnet(std::int64_t side) {
  return {.crop = side, .padding = 4, .random_crop = true, .flip = true};
}

ImageNormalization normalize_channels(const std::array<float, 3>& mean, const std::array<float, 3>& deviation) {
  ImageNormalization by{.kind = ImageNormalization::Kind::kPerChannel};
  std::copy(mean.begin(), mean.end(), by.mean);
  std::copy(deviation.begin(), deviation.end(), by.deviation);
  check_normalization(by);
  return by;
}

Augmentation draw_augmentation(const ImageAugmentation& recipe, std::int64_t side, Philox& random) {
  const ImageAugmentation known = checked(recipe, side);
  const auto margin = static_cast<std::int32_t>((side - known.crop) / 2);
  Augmentation how{margin, margin, 0, 0, 1};
  if (known.random_crop) {
    const auto places = static_cast<std::uint32_t>(side + 2 * known.padding - known.crop + 1);
    const auto padding = static_cast<std::int32_t>(known.padding);
    how.top = static_cast<std::int32_t>(random.below(places)) - padding;
    how.left = static_cast<std::int32_t>(random.below(places)) - padding;
  }
  if (known.flip) how.mirrored = random.below(2) == 1 ? 1 : 0;
  if (known.brightness != 0) how.brightness = random.uniform(-known.brightness, known.brightness);
  if (known.contrast_low != 1 || known.contrast_high != 1)
    how.contrast = random.uniform(known.contrast_low, known.contrast_high);
  return how;
}

ImageDataset::ImageDataset(std::int64_t side, const ImageAugmentation& recipe, std::uint64_t seed)
    : side_(side), recipe_(checked(recipe, side)), seed_(seed) {}

std::vector<TensorSpec> ImageDataset::element_spec() const {
  return {{{recipe_.crop, recipe_.crop, 3}, DType::kFloat32}, {Shape(), DType::kInt64}};
}

Augmentation ImageDataset::augmentation_of(std::int64_t index, std::int64_t epoch) const {
  Philox random(seed_, augmentation_stream(index, epoch));
  return draw_augmentation(recipe_, side_, random);
}

void ImageDataset::read(std::int64_t index, std::int64_t epoch, const Row& row) const {
  const Stored image = stored(index);
  const Augmentation how = augmentation_of(index, epoch);
  Device& cpu = cpu_device();
  cpu.kernels().families.get<AugmentKernels>().augment({1, side_, recipe_.crop}, recipe_.normalization, image.planes,
                                                       &how, row.span<float>(0).data(), cpu.default_stream());
  row.value<std::int64_t>(1) = image.label;
}

void ImageDataset::read_image(std::int64_t index, std::int64_t epoch, std::span<std::uint8_t> planes, Augmentation& how,
                              std::int64_t& target) const {
  const Stored image = stored(index);
  target = image.label;
  how = augmentation_of(index, epoch);
  std::copy_n(image.planes, planes.size(), planes.begin());
}

ImageTensors::ImageTensors(const Tensor& images, const Tensor& labels, const ImageAugmentation& recipe,
                           std::uint64_t seed)
    : ImageDataset(checked_side(images, labels), recipe, seed), images_(images), labels_(labels) {}

ImageDataset::Stored ImageTensors::stored(std::int64_t index) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("ImageTensors: sample {} does not exist; the set has {}", index, size());
  return {images_.data<std::uint8_t>() + index * (3 * side() * side()), labels_.data<std::int64_t>()[index]};
}

}  // namespace lockstep::data
