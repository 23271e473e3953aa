// Common parts of convolutions by Winograd's filtering: the division of images into tiles, and the transformation of
// pixels to points.
#pragma once

#include <algorithm>

#include "kernels/cpu/winograd_avx512.h"
#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"

namespace lockstep::winograd {

// F(4x4, kTaps x kTaps).
template <Index kTaps> struct Form {
  static constexpr Index kKernel = kTaps, kOut = 4;
  static constexpr Index kPoints = kOut + kKernel - 1;  // in each direction
  static constexpr Index kAll = kPoints * kPoints;
  static constexpr Index kTiles = kPoints == 6 ? 48 : 24;  // in a block
  // The distance from one point's (kTiles, channels) to the next. A distance of whole pages would put all of them into
  // one set of the first-level cache; five more cache lines spread them.
  static constexpr Index plane(Index channels) { return kTiles * channels + 5 * kLanes; }
  static constexpr Index points(Index channels) { return kAll * plane(channels); }

  using Inputs = InputTransform<kPoints>;
  using Kernels = Evaluation<kPoints, kKernel, true>;
  using Outputs = Gathering<kPoints, kOut, false>;
  using OutputGradients = Evaluation<kPoints, kOut, false>;
  using KernelGradients = Gathering<kPoints, kKernel, true>;
};

// A batch of images, NHWC.
template <typename Float> struct Images {
  Float* data;
  Index height, width, channels;

  Float* pixel(Index n, Index row, Index column) const {
    return data + ((n * height + row) * width + column) * channels;
  }
  bool has(Index row, Index column) const { return row >= 0 && row < height && column >= 0 && column < width; }
};

// The division of an image's outputs into tiles.
template <typename F> struct Tiling {
  Index batch, rows, columns;

  Tiling(Index batch, Index height, Index width)
      : batch(batch), rows((height + F::kOut - 1) / F::kOut), columns((width + F::kOut - 1) / F::kOut) {}
  Index count() const { return batch * rows * columns; }
  Index blocks() const { return (count() + F::kTiles - 1) / F::kTiles; }
  Index image(Index tile) const { return tile / (rows * columns); }
  Index row(Index tile) const { return tile / columns % rows * F::kOut; }
  Index column(Index tile) const { return tile % columns * F::kOut; }
};

class Scratch {
 public:
  explicit Scratch(Index count) : buffer_(cpu_device().allocate(count * sizeof(float))) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

class Zeros : public Scratch {
 public:
  explicit Zeros(Index count) : Scratch(count) { std::fill_n(data(), count, 0.0F); }
};

// The pixels of a square whose corner is (row, column); outside the image they are `outside`.
template <Index kSize, typename Float>
void find_square(const Images<Float>& images, Index n, Index row, Index column, Float* outside, Float** pixels) {
  for (Index i = 0; i < kSize; ++i)
    for (Index j = 0; j < kSize; ++j)
      pixels[i * kSize + j] = images.has(row + i, column + j) ? images.pixel(n, row + i, column + j) : outside;
}

// Computes the points of tiles [first, first + count), plane(channels) floats each, from squares of kFrom x kFrom
// pixels that begin `top` rows and `left` columns before the tiles' outputs. `zeros` has one float per channel.
template <typename F, typename Transform, Index kFrom>
LOCKSTEP_TARGET_AVX512 void transform_images(const Images<const float>& images, const Tiling<F>& tiling, Index first,
                                             Index count, Index top, Index left, const float* zeros, float* points) {
  constexpr Index kPoints = F::kPoints;
  const Index channels = images.channels, plane = F::plane(channels);
  for (Index tile = first; tile < first + count; ++tile, points += channels) {
    const float* pixels[kFrom * kFrom];
    find_square<kFrom>(images, tiling.image(tile), tiling.row(tile) - top, tiling.column(tile) - left, zeros, pixels);
    for (Index c = 0; c < channels; c += kLanes) {
      __m512 half[kFrom * kPoints];  // (column, point)
      for (Index j = 0; j < kFrom; ++j) {
        __m512 column[kFrom];
        for (Index i = 0; i < kFrom; ++i) column[i] = _mm512_loadu_ps(pixels[i * kFrom + j] + c);
        Transform::apply(column, 1, half + j * kPoints);
      }
      for (Index i = 0; i < kPoints; ++i) {
        __m512 row[kPoints];
        Transform::apply(half + i, kPoints, row);
        for (Index j = 0; j < kPoints; ++j) _mm512_storeu_ps(points + (i * kPoints + j) * plane + c, row[j]);
      }
    }
  }
}

// Applies both directions of a transform to one vector of each of kFrom x kFrom values, from_step apart, and stores kTo
// x kTo, to_step apart.
template <typename Transform, Index kFrom, Index kTo>
LOCKSTEP_INLINE_AVX512 void transform_square(const float* from, Index from_step, float* to, Index to_step) {
  __m512 half[kFrom * kTo];
  for (Index j = 0; j < kFrom; ++j) {
    __m512 column[kFrom];
    for (Index i = 0; i < kFrom; ++i) column[i] = _mm512_loadu_ps(from + (i * kFrom + j) * from_step);
    Transform::apply(column, 1, half + j * kTo);
  }
  for (Index i = 0; i < kTo; ++i) {
    __m512 row[kTo];
    Transform::apply(half + i, kTo, row);
    for (Index j = 0; j < kTo; ++j) _mm512_storeu_ps(to + (i * kTo + j) * to_step, row[j]);
  }
}

// The operations on an output before it is stored.
struct Finish {
  const float* bias = nullptr;
  bool relu = false, accumulate = false;
};

// The second direction of the transform of a tile's outputs, for one vector of channels: from half (column, output) to
// the pixels.
template <typename F> LOCKSTEP_INLINE_AVX512 void store_outputs(const __m512* half, const Finish& finish, Index channel,
                                                                float* const* pixels) {
  for (Index i = 0; i < F::kOut; ++i) {
    __m512 row[F::kOut];
    F::Outputs::apply(half + i, F::kOut, row);
    for (Index j = 0; j < F::kOut; ++j) {
      float* const slot = pixels[i * F::kOut + j] + channel;
      __m512 value = row[j];
      if (finish.bias != nullptr) value = value + _mm512_loadu_ps(finish.bias + channel);
      if (finish.accumulate) value = value + _mm512_loadu_ps(slot);
      _mm512_storeu_ps(slot, finish.relu ? avx512::clamped(value) : value);
    }
  }
}

// True if there is a form for this kernel and these images, and the CPU supports it.
bool has_form(const Conv2dShape& shape);

}  // namespace lockstep::winograd
