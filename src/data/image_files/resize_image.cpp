// Resizing with a triangle filter, first along rows, then along columns, in the integer arithmetic of Pillow
// (libImaging/Resample.c), so that a model sees the same pixels as one that torchvision feeds.
#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/data/image_folder.h"
#include "src/data/image_files/image_part.h"

namespace lockstep::data {

namespace {

constexpr int kWeightBits = 22;  // 32 - 8 of a pixel - 2, so that sums of weighted pixels fit
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 20;

// Output pixels first .. first + count - 1 of one dimension, in which `in` pixels become `out`.
struct ResizedSpan {
  std::int64_t in, out, first, count;
  bool is_unchanged() const { return in == out; }
};

// The input pixels that each output pixel of a span reads, and their weights, all of which sum to 2^kWeightBits up to
// rounding.
struct ResizeTaps {
  struct Range {
    std::int64_t begin, count;
  };
  std::vector<Range> ranges;
  std::vector<std::int32_t> weights;
  std::size_t most = 0;  // taps of one output pixel; its weights begin at most * index
};

ResizeTaps resize_taps(const ResizedSpan& span) {
  const double scale = static_cast<double>(span.in) / static_cast<double>(span.out), reach = std::max(scale, 1.0);
  ResizeTaps taps;
  taps.most = static_cast<std::size_t>(std::ceil(reach)) * 2 + 1;
  taps.weights.resize(taps.most * static_cast<std::size_t>(span.count));
  std::vector<double> shares(taps.most);
  for (std::int64_t at = 0; at < span.count; ++at) {
    const double centre = (static_cast<double>(span.first + at) + 0.5) * scale;
    const auto begin = std::max<std::int64_t>(static_cast<std::int64_t>(centre - reach + 0.5), 0);
    const auto end = std::min<std::int64_t>(static_cast<std::int64_t>(centre + reach + 0.5), span.in);
    const auto count = static_cast<std::size_t>(end - begin);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double distance = (static_cast<double>(begin) + static_cast<double>(i) - centre + 0.5) * (1 / reach);
      shares[i] = std::max(0.0, 1 - std::abs(distance));
      sum += shares[i];
    }
    std::int32_t* const weights = taps.weights.data() + taps.most * static_cast<std::size_t>(at);
    for (std::size_t i = 0; i < count; ++i)
      weights[i] = static_cast<std::int32_t>(0.5 + shares[i] / sum * (1 << kWeightBits));
    taps.ranges.push_back({begin, static_cast<std::int64_t>(count)});
  }
  return taps;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

// x (rows, in, inner), which lacks the first `skipped` pixels of its middle dimension, to y (rows, count, inner).
void resize_middle(const std::uint8_t* x, std::int64_t rows, std::int64_t in, std::int64_t skipped,
                   const ResizeTaps& taps, std::int64_t inner, std::uint8_t* y) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(inner));
  for (std::int64_t row = 0; row < rows; ++row, x += in * inner)
    for (std::size_t at = 0; at < taps.ranges.size(); ++at, y += inner) {
      const auto [begin, count] = taps.ranges[at];
      const std::int32_t* const weights = taps.weights.data() + taps.most * at;
      std::fill(sums.begin(), sums.end(), 1 << (kWeightBits - 1));
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint8_t* const from = x + (begin - skipped + i) * inner;
        for (std::int64_t j = 0; j < inner; ++j) sums[static_cast<std::size_t>(j)] += from[j] * weights[i];
      }
      std::transform(sums.begin(), sums.end(), y, rounded);
    }
}

}  // namespace

Tensor resize_image(const Tensor& image, std::int64_t height, std::int64_t width) {
  if (!image.defined() || image.dtype() != DType::kUInt8 || image.shape().dims() != 3 || image.count() == 0)
    throw InvalidArgument("resize_image: expected an image (H, W, C) uint8 that is not empty, got {} {}",
                          image.defined() ? name_of(image.dtype()) : "an undefined tensor",
                          image.defined() ? image.shape().text() : "");
  if (height < 1 || width < 1 || height > kMaxExtent || width > kMaxExtent)
    throw InvalidArgument("resize_image: expected a height and a width from 1 to {}, got {} and {}", kMaxExtent, height,
                          width);
  return resize_part(image, {height, width}, {0, 0, height, width});
}

Tensor resize_part(const Tensor& image, const ImageExtents& resized, const ImagePart& part) {
  const std::int64_t rows = image.shape()[0], columns = image.shape()[1], channels = image.shape()[2];
  const ResizedSpan down{rows, resized.height, part.top, part.height},
      across{columns, resized.width, part.left, part.width};
  // The rows that the part reads; without a change of height, its own.
  ResizeTaps taps;
  std::int64_t first = part.top, count = part.height;
  if (!down.is_unchanged()) {
    taps = resize_taps(down);
    first = taps.ranges.front().begin;
    count = taps.ranges.back().begin + taps.ranges.back().count - first;
  }
  Tensor wide;
  if (across.is_unchanged()) {
    wide = cut(image, {first, part.left, count, part.width});
  } else {
    wide = Tensor::empty({count, part.width, channels}, DType::kUInt8, cpu_device());
    resize_middle(image.data<std::uint8_t>() + first * columns * channels, count, columns, 0, resize_taps(across),
                  channels, wide.data<std::uint8_t>());
  }
  if (down.is_unchanged()) return wide;
  const Tensor all = Tensor::empty({part.height, part.width, channels}, DType::kUInt8, cpu_device());
  resize_middle(wide.data<std::uint8_t>(), 1, count, first, taps, part.width * channels, all.data<std::uint8_t>());
  return all;
}

Tensor cut(const Tensor& image, const ImagePart& part) {
  const std::int64_t width = image.shape()[1], channels = image.shape()[2];
  const Tensor piece = Tensor::empty({part.height, part.width, channels}, DType::kUInt8, cpu_device());
  for (std::int64_t row = 0; row < part.height; ++row)
    std::copy_n(image.data<std::uint8_t>() + ((part.top + row) * width + part.left) * channels, part.width * channels,
                piece.data<std::uint8_t>() + row * part.width * channels);
  return piece;
}

}  // namespace lockstep::data
