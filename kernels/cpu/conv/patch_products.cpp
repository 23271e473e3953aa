#include "kernels/cpu/conv/patch_products.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/conv/batch_parts.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/product.h"
#include "kernels/windows.h"
#include "lockstep/core/device.h"
#include "lockstep/core/kernels.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::patch_products {

namespace {

using Index = std::int64_t;

constexpr Index kPatches = 384;  // at a time

Index pixels(const Conv2dShape& s) { return s.out_height * s.out_width; }
Index image(const Conv2dShape& s) { return s.in_height * s.in_width * s.in_channels; }
Index patch(const Conv2dShape& s) { return s.kernel_height * s.kernel_width * s.group_channels(); }

// True if the rows of x are the patches.
bool is_plain(const Conv2dShape& s) {
  return s.kernel_height == 1 && s.kernel_width == 1 && s.stride_height == 1 && s.stride_width == 1 && s.pad_top == 0 &&
         s.pad_left == 0 && s.out_height == s.in_height && s.out_width == s.in_width;
}

// Patches are processed in blocks of whole images if those are small, else of part of an image. How they are cut
// depends on the shape alone.
struct Blocks {
  Index images, pixels, of_images;  // images at a time; of one image, pixels at a time, and the number of such blocks

  explicit Blocks(const Conv2dShape& s)
      : images(std::max<Index>(1, kPatches / patch_products::pixels(s))),
        pixels(std::min(patch_products::pixels(s), kPatches)),
        of_images((s.batch + images - 1) / images) {}
};

struct Block {
  Index first, count;  // output pixels of the batch
};

// Calls visit(block) for the blocks of the nth group of images.
template <typename Visit> void for_each_block(const Conv2dShape& s, const Blocks& blocks, Index nth, Visit&& visit) {
  const Index first = nth * blocks.images * pixels(s), end = std::min(s.batch, (nth + 1) * blocks.images) * pixels(s);
  const Index step = blocks.images > 1 ? end - first : blocks.pixels;
  for (Index at = first; at < end; at += step) visit(Block{at, std::min(step, end - at)});
}

// The same as for_each_run() for a dilated window, whose taps are not adjacent.
template <typename Visit> void for_each_tap(const Conv2dShape& s, Index group, Index pixel, Visit&& visit) {
  const Index n = pixel / pixels(s), channels = s.group_channels();
  const Index top = pixel % pixels(s) / s.out_width * s.stride_height - s.pad_top,
              left = pixel % s.out_width * s.stride_width - s.pad_left;
  for (Index tap = 0; tap < s.kernel_height * s.kernel_width; ++tap) {
    const Index row = top + tap / s.kernel_width * s.dilation_height,
                column = left + tap % s.kernel_width * s.dilation_width;
    const bool is_inside = row >= 0 && row < s.in_height && column >= 0 && column < s.in_width;
    const Index at = ((n * s.in_height + row) * s.in_width + column) * s.in_channels + group * channels;
    visit(is_inside ? at : Index{-1}, tap * channels, channels);
  }
}

// Calls visit(pixel of the input or -1, place in the patch, number of floats) for the runs of adjacent floats of a
// patch: a row of the window if its channels are all read, else one tap.
template <typename Visit> void for_each_run(const Conv2dShape& s, Index group, Index pixel, Visit&& visit) {
  if (s.is_dilated()) return for_each_tap(s, group, pixel, visit);
  const Index n = pixel / pixels(s), row = pixel % pixels(s) / s.out_width, column = pixel % s.out_width;
  const Taps rows = taps_inside(row, s.stride_height, s.pad_top, s.kernel_height, s.in_height);
  const Taps columns = taps_inside(column, s.stride_width, s.pad_left, s.kernel_width, s.in_width);
  const Index channels = s.group_channels(), of_row = s.kernel_width * channels;
  for (Index r = 0; r < s.kernel_height; ++r) {
    const Index place = r * of_row;
    if (r < rows.first || r >= rows.end || columns.first >= columns.end) {
      visit(Index{-1}, place, of_row);
      continue;
    }
    const Index from = ((n * s.in_height + rows.input + r - rows.first) * s.in_width + columns.input) * s.in_channels +
                       group * channels;
    const Index inside = columns.end - columns.first;
    visit(Index{-1}, place, columns.first * channels);
    if (s.groups == 1)
      visit(from, place + columns.first * channels, inside * channels);
    else
      for (Index tap = 0; tap < inside; ++tap)
        visit(from + tap * s.in_channels, place + (columns.first + tap) * channels, channels);
    visit(Index{-1}, place + columns.end * channels, of_row - columns.end * channels);
  }
}

void gather(const Conv2dShape& s, const float* x, Index group, const Block& block, float* patches) {
  for (Index i = 0; i < block.count; ++i, patches += patch(s))
    for_each_run(s, group, block.first + i, [&](Index from, Index place, Index count) {
      if (from < 0)
        std::fill_n(patches + place, count, 0.0F);
      else
        std::memcpy(patches + place, x + from, static_cast<std::size_t>(count) * sizeof(float));
    });
}

void add_back(const Conv2dShape& s, const float* patches, Index group, const Block& block, float* x_grad) {
  for (Index i = 0; i < block.count; ++i, patches += patch(s))
    for_each_run(s, group, block.first + i, [&](Index to, Index place, Index count) {
      for (Index c = 0; c < count && to >= 0; ++c) x_grad[to + c] += patches[place + c];
    });
}

Index patches_at_once(const Conv2dShape& s, const Blocks& blocks) {
  return blocks.images > 1 ? blocks.images * pixels(s) : blocks.pixels;
}

// The patches of a block, copied or as they are.
MatrixOperand patches_of(const Conv2dShape& s, const float* x, Index group, const Block& block, const Scratch& memory) {
  if (is_plain(s)) return as_stored(x + block.first * s.in_channels + group * s.group_channels(), s.in_channels);
  gather(s, x, group, block, memory.data());
  return as_stored(memory.data(), patch(s));
}

}  // namespace

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  const Blocks blocks(s);
  in_parallel(blocks.of_images, [&](Index nth) {
    const Scratch memory(is_plain(s) ? 1 : patches_at_once(s, blocks) * patch(s));
    for_each_block(s, blocks, nth, [&](const Block& block) {
      for (Index group = 0; group < s.groups; ++group) {
        const Index filter = group * s.group_filters();
        multiply_alone({block.count, s.group_filters(), patch(s), patches_of(s, x, group, block, memory),
                        transposed(weight + filter * patch(s), patch(s)), y + block.first * s.out_channels + filter,
                        s.out_channels, false, bias == nullptr ? nullptr : bias + filter, relu});
      }
    });
  });
}

void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  const Blocks blocks(s);
  in_parallel(blocks.of_images, [&](Index nth) {
    const Index images = std::min(blocks.images, s.batch - nth * blocks.images);
    if (!accumulate && !is_plain(s)) std::fill_n(x_grad + nth * blocks.images * image(s), images * image(s), 0.0F);
    const Scratch memory(is_plain(s) ? 1 : patches_at_once(s, blocks) * patch(s));
    for_each_block(s, blocks, nth, [&](const Block& block) {
      for (Index group = 0; group < s.groups; ++group) {
        const Index filter = group * s.group_filters();
        const MatrixOperand grads = as_stored(y_grad + block.first * s.out_channels + filter, s.out_channels);
        const MatrixOperand weights = as_stored(weight + filter * patch(s), patch(s));
        if (is_plain(s)) {
          multiply_alone({block.count, patch(s), s.group_filters(), grads, weights,
                          x_grad + block.first * s.in_channels + group * s.group_channels(), s.in_channels,
                          accumulate});
          continue;
        }
        multiply_alone({block.count, patch(s), s.group_filters(), grads, weights, memory.data(), patch(s)});
        add_back(s, memory.data(), group, block, x_grad);
      }
    });
  });
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  const Blocks blocks(s);
  const Index count = s.out_channels * patch(s), parts = parts_of_batch(s.batch);
  const Scratch sums(count);
  sum_of_parts(parts, count, sums.data(), [&](Index part, float* to) {
    const Scratch memory(is_plain(s) ? 1 : patches_at_once(s, blocks) * patch(s));
    const Index begin = blocks.of_images * part / parts, end = blocks.of_images * (part + 1) / parts;
    if (begin == end) std::fill_n(to, count, 0.0F);
    for (Index nth = begin; nth < end; ++nth)
      for_each_block(s, blocks, nth, [&](const Block& block) {
        const bool is_first = block.first == begin * blocks.images * pixels(s);
        for (Index group = 0; group < s.groups; ++group) {
          const Index filter = group * s.group_filters();
          multiply_alone({s.group_filters(), patch(s), block.count,
                          transposed(y_grad + block.first * s.out_channels + filter, s.out_channels),
                          patches_of(s, x, group, block, memory), to + filter * patch(s), patch(s), !is_first});
        }
      });
  });
  const Shape all = {count};
  cpu_device().kernels().scale({sums.data(), all}, 1, {weight_grad, all, accumulate}, cpu_device().default_stream());
}

}  // namespace lockstep::patch_products
