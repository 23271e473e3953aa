// Common parts of convolutions by Winograd's filtering: the division of images into tiles, and the transformation of
// pixels to points, the latter for each instruction set.
#pragma once

#include <algorithm>

#include "kernels/cpu/conv/winograd/winograd_points.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/tile.h"
#include "lockstep/core/kernels.h"

namespace lockstep::winograd {

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

// The pixels of a square whose corner is (row, column); outside the image they are `outside`.
template <Index kSize, typename Float>
void find_square(const Images<Float>& images, Index n, Index row, Index column, Float* outside, Float** pixels) {
  for (Index i = 0; i < kSize; ++i)
    for (Index j = 0; j < kSize; ++j)
      pixels[i * kSize + j] = images.has(row + i, column + j) ? images.pixel(n, row + i, column + j) : outside;
}

// The operations on an output before it is stored.
struct Finish {
  const float* bias = nullptr;
  bool relu = false, accumulate = false;
};

// True if there is a form for this kernel and these images.
bool has_form(const Conv2dShape& shape);

}  // namespace lockstep::winograd

#define LOCKSTEP_LOOPS "kernels/cpu/conv/winograd/winograd_transforms.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/conv/winograd/winograd_tiles.inc"
#include "kernels/cpu/simd/for_each_isa.h"
