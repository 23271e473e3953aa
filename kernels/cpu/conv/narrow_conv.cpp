// The images are processed one by one. The taps of one row of the kernel, with all input channels, are consecutive
// floats that begin at the window's corner. The products of a few of these floats and a few vectors of output channels
// are summed in registers over all pixels of the image, whose gradients stay in the second-level cache meanwhile. The
// image is first copied and padded with zeros, so that all windows lie inside.
#include "kernels/cpu/conv/narrow_conv.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/conv/batch_parts.h"
#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/tile.h"
#include "kernels/cpu/simd/by_isa.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::narrow_conv {

using Index = std::int64_t;

// An image with zeros around it.
struct Padded {
  Index height, width, row;  // `row`: floats in a row

  explicit Padded(const Conv2dShape& s)
      : height((s.out_height - 1) * s.stride_height + s.kernel_height),
        width((s.out_width - 1) * s.stride_width + s.kernel_width),
        row(width * s.in_channels) {}
  Index count() const { return height * row; }
};

static Index run_of(const Conv2dShape& s) { return s.kernel_width * s.in_channels; }
static Index taps_of(const Conv2dShape& s) { return s.kernel_height * run_of(s); }

}  // namespace lockstep::narrow_conv

#define LOCKSTEP_LOOPS "kernels/cpu/conv/narrow_conv.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::narrow_conv {

namespace {

constexpr Index kMostChannels = 8;

void copy_image(const Conv2dShape& s, const Padded& padded, const float* x, float* to) {
  const Index columns = std::max<Index>(0, std::min(s.in_width, padded.width - s.pad_left));
  for (Index row = 0; row < std::min(s.in_height, padded.height - s.pad_top); ++row)
    std::memcpy(to + (row + s.pad_top) * padded.row + s.pad_left * s.in_channels, x + row * s.in_width * s.in_channels,
                static_cast<std::size_t>(columns * s.in_channels) * sizeof(float));
}

}  // namespace

void store_gradients(const float* sums, std::int64_t taps, std::int64_t outs, Out weight_grad, Out bias_grad) {
  const auto store = [](float* slot, float sum, bool accumulate) { *slot = accumulate ? *slot + sum : sum; };
  for (Index o = 0; o < outs; ++o) {
    for (Index tap = 0; tap < taps; ++tap)
      store(weight_grad.floats() + o * taps + tap, sums[tap * outs + o], weight_grad.accumulate);
    if (bias_grad) store(bias_grad.floats() + o, sums[taps * outs + o], bias_grad.accumulate);
  }
}

bool suits(const Conv2dShape& s) {
  return s.groups == 1 && s.in_channels > 0 && s.in_channels <= kMostChannels && s.out_channels > 0 &&
         s.out_channels % LOCKSTEP_BY_ISA(kLanes) == 0 && s.pad_top >= 0 && s.pad_left >= 0 &&
         s.batch * s.out_height * s.out_width > 0;
}

void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, Out weight_grad,
                             Out bias_grad) {
  const Padded padded(s);
  const Index outs = s.out_channels, taps = taps_of(s), count = taps * outs, pixels = s.out_height * s.out_width;
  const auto add = LOCKSTEP_BY_ISA(narrow_conv::add_image);
  const Scratch sums(count + outs);
  const Index parts = parts_of_batch(s.batch);
  sum_of_parts(parts, count + outs, sums.data(),
               [&](Index part, float* to) {  // the biases' gradients follow those of the weights
                 const Zeros image(padded.count());
                 std::fill_n(to, count + outs, 0.0F);
                 for (Index n = s.batch * part / parts; n < s.batch * (part + 1) / parts; ++n) {
                   copy_image(s, padded, x + n * s.in_height * s.in_width * s.in_channels, image.data());
                   add(s, padded, image.data(), y_grad + n * pixels * outs, to);
                   if (bias_grad) fast::add_column_sums(y_grad + n * pixels * outs, pixels, outs, to + count);
                 }
               });
  store_gradients(sums.data(), taps, outs, weight_grad, bias_grad);
}

}  // namespace lockstep::narrow_conv
