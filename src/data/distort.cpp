#include "src/data/distort.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::data {

void crop_picture(const PlanarPicture& picture, std::int64_t top, std::int64_t left, std::int64_t crop, bool mirrored,
                  std::span<float> out) {
  const std::int64_t plane = picture.side * picture.side;
  float* pixel = out.data();
  for (std::int64_t row = top; row < top + crop; ++row) {
    const std::uint8_t* line = picture.pixels + row * picture.side + left;
    for (std::int64_t column = 0; column < crop; ++column, pixel += 3) {
      const std::uint8_t* source = line + (mirrored ? crop - 1 - column : column);
      for (std::int64_t channel = 0; channel < 3; ++channel) pixel[channel] = source[channel * plane];
    }
  }
}

void distort_picture(const PlanarPicture& picture, std::int64_t crop, Philox& random, std::span<float> out) {
  const auto places = static_cast<std::uint32_t>(picture.side - crop + 1);
  const std::int64_t top = random.below(places), left = random.below(places);
  crop_picture(picture, top, left, crop, random.below(2) == 1, out);
  const float brightness = random.uniform(-63, 63), contrast = random.uniform(0.2f, 1.8f);
  std::array<double, 3> sums{};
  for (std::size_t i = 0; i < out.size(); i += 3)
    for (std::size_t channel = 0; channel < 3; ++channel) sums[channel] += out[i + channel];
  // (x + brightness - mean) * contrast + mean, where the mean is that of the brightened channel.
  std::array<float, 3> shift;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto mean = static_cast<float>(sums[channel] / static_cast<double>(out.size() / 3)) + brightness;
    shift[channel] = (brightness - mean) * contrast + mean;
  }
  for (std::size_t i = 0; i < out.size(); i += 3)
    for (std::size_t channel = 0; channel < 3; ++channel) out[i + channel] = out[i + channel] * contrast + shift[channel];
}

void standardise(std::span<float> picture) {
  const auto count = static_cast<double>(picture.size());
  double sum = 0, squares = 0;
  for (const float value : picture) sum += value;
  const double mean = sum / count;
  for (const float value : picture) squares += (value - mean) * (value - mean);
  const double deviation = std::max(std::sqrt(squares / count), 1 / std::sqrt(count));
  const auto factor = static_cast<float>(1 / deviation), offset = static_cast<float>(mean);
  for (float& value : picture) value = (value - offset) * factor;
}

}  // namespace lockstep::data
