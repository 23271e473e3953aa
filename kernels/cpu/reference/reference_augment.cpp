// Augmentation of images: a crop, possibly mirrored, with changed brightness and contrast, normalised by its own mean
// and deviation (the recipe of TensorFlow's CIFAR-10 tutorial) or by given ones. Means and deviations are computed in
// double.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/reference/reference.h"
#include "lockstep/data/augment_kernels.h"

namespace lockstep::reference {

using data::Augmentation;
using data::ImageNormalization;
using data::ImageShape;

namespace {

// A crop that lies inside the image.
void crop_inside(const ImageShape& shape, const std::uint8_t* planes, const Augmentation& how, float* out) {
  const Index plane = shape.side * shape.side;
  for (Index row = how.top; row < how.top + shape.crop; ++row) {
    const std::uint8_t* line = planes + row * shape.side + how.left;
    for (Index column = 0; column < shape.crop; ++column, out += 3) {
      const std::uint8_t* source = line + (how.mirrored != 0 ? shape.crop - 1 - column : column);
      for (Index channel = 0; channel < 3; ++channel) out[channel] = source[channel * plane];
    }
  }
}

// A crop that extends beyond the image into black pixels.
void crop_padded(const ImageShape& shape, const std::uint8_t* planes, const Augmentation& how, float* out) {
  const Index plane = shape.side * shape.side;
  for (Index row = how.top; row < how.top + shape.crop; ++row)
    for (Index column = 0; column < shape.crop; ++column, out += 3) {
      const Index from = how.left + (how.mirrored != 0 ? shape.crop - 1 - column : column);
      const bool inside = row >= 0 && row < shape.side && from >= 0 && from < shape.side;
      for (Index channel = 0; channel < 3; ++channel)
        out[channel] = inside ? planes[channel * plane + row * shape.side + from] : 0;
    }
}

void crop_image(const ImageShape& shape, const std::uint8_t* planes, const Augmentation& how, float* out) {
  const bool inside = std::min(how.top, how.left) >= 0 && std::max(how.top, how.left) + shape.crop <= shape.side;
  inside ? crop_inside(shape, planes, how, out) : crop_padded(shape, planes, how, out);
}

// (x + brightness - mean) * contrast + mean, with the mean of the brightened channel.
void change_light(const Augmentation& how, std::span<float> out) {
  std::array<double, 3> sums{};
  for (std::size_t i = 0; i < out.size(); i += 3)
    for (std::size_t channel = 0; channel < 3; ++channel) sums[channel] += out[i + channel];
  std::array<float, 3> shift;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto mean = static_cast<float>(sums[channel] / static_cast<double>(out.size() / 3)) + how.brightness;
    shift[channel] = (how.brightness - mean) * how.contrast + mean;
  }
  for (std::size_t i = 0; i < out.size(); i += 3)
    for (std::size_t channel = 0; channel < 3; ++channel)
      out[i + channel] = out[i + channel] * how.contrast + shift[channel];
}

void standardise(std::span<float> image) {
  const auto count = static_cast<double>(image.size());
  double sum = 0, squares = 0;
  for (const float value : image) sum += value;
  const double mean = sum / count;
  for (const float value : image) squares += (value - mean) * (value - mean);
  const double deviation = std::max(std::sqrt(squares / count), 1 / std::sqrt(count));
  const auto factor = static_cast<float>(1 / deviation), offset = static_cast<float>(mean);
  for (float& value : image) value = (value - offset) * factor;
}

void normalise_channels(const ImageNormalization& by, std::span<float> image) {
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const float offset = by.mean[channel] * 255, factor = 1 / (by.deviation[channel] * 255);
    for (std::size_t i = channel; i < image.size(); i += 3) image[i] = (image[i] - offset) * factor;
  }
}

void augment(const ImageShape& shape, const ImageNormalization& normalization, const std::uint8_t* planes,
             const Augmentation* each, float* out, Stream&) {
  const auto size = static_cast<std::size_t>(shape.crop * shape.crop * 3);
  for (Index n = 0; n < shape.batch; ++n) {
    const std::span<float> image(out + static_cast<std::size_t>(n) * size, size);
    crop_image(shape, planes + n * shape.side * shape.side * 3, each[n], image.data());
    if (each[n].brightness != 0 || each[n].contrast != 1) change_light(each[n], image);
    normalization.kind == ImageNormalization::Kind::kPerImage ? standardise(image)
                                                              : normalise_channels(normalization, image);
  }
}

}  // namespace

void add_augment_kernels(KernelTable& table) {
  static constexpr data::AugmentKernels kKernels = {.augment = augment};
  table.families.set(kKernels);
}

}  // namespace lockstep::reference
