// An image is processed in bands of rows, which are copied and padded with zeros, one vector of channels to a plane: so
// all windows lie inside, and data that is read repeatedly is contiguous and in the second-level cache. The gradient of
// the input is a convolution of the output's gradient with the reversed kernel, with filters and channels exchanged.
#include "kernels/cpu/conv/grouped_conv.h"

#include <algorithm>

#include "kernels/cpu/conv/batch_parts.h"
#include "kernels/cpu/math/scratch.h"
#include "kernels/cpu/products/tile.h"
#include "kernels/cpu/simd/by_isa.h"
#include "lockstep/core/device.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::grouped_conv {

namespace {

using Index = std::int64_t;

constexpr Index kTaps = 3;  // taps in a row of the kernel

// The operations on an output before it is stored.
struct Finish {
  const float* bias;  // null: no bias
  bool relu, accumulate;
};

int group_of(const Conv2dShape& s) { return static_cast<int>(s.group_channels()); }
Index weight_count(const Conv2dShape& s) { return s.out_channels * s.kernel_height * kTaps * s.group_channels(); }

// The images that are read, and the outputs whose windows lie in them.
struct Geometry {
  Index height, width, channels, pad_top, pad_left, out_height, out_width, kernel_height;
  int group;

  Index image() const { return height * width * channels; }
  Index out_image() const { return out_height * out_width * channels; }
};

Geometry forward_of(const Conv2dShape& s) {
  return {s.in_height,  s.in_width,  s.in_channels,   s.pad_top,  s.pad_left,
          s.out_height, s.out_width, s.kernel_height, group_of(s)};
}
Geometry backward_of(const Conv2dShape& s) {
  return {s.out_height,
          s.out_width,
          s.in_channels,
          s.kernel_height - 1 - s.pad_top,
          kTaps - 1 - s.pad_left,
          s.in_height,
          s.in_width,
          s.kernel_height,
          group_of(s)};
}

}  // namespace

}  // namespace lockstep::grouped_conv

#define LOCKSTEP_LOOPS "kernels/cpu/conv/grouped_conv_tiles.inc"
#include "kernels/cpu/simd/for_each_isa.h"
#define LOCKSTEP_LOOPS "kernels/cpu/conv/grouped_conv.inc"
#include "kernels/cpu/simd/for_each_isa.h"

namespace lockstep::grouped_conv {

bool suits(const Conv2dShape& s) {
  const Index group = s.group_channels(), lanes = LOCKSTEP_BY_ISA(kLanes);
  return s.in_channels == s.out_channels && s.in_channels % lanes == 0 && (group == 2 || group == 4 || group == 8) &&
         group <= lanes && s.kernel_width == kTaps && s.stride_height == 1 && s.stride_width == 1 && s.pad_top >= 0 &&
         s.pad_top < s.kernel_height && s.pad_left >= 0 && s.pad_left < kTaps &&
         s.batch * s.in_height * s.in_width * s.out_height * s.out_width > 0;
}

void conv2d(const Conv2dShape& s, const float* x, const float* weight, const float* bias, bool relu, float* y) {
  LOCKSTEP_BY_ISA(grouped_conv::conv2d)(s, x, weight, bias, relu, y);
}
void conv2d_backward_data(const Conv2dShape& s, const float* y_grad, const float* weight, float* x_grad,
                          bool accumulate) {
  LOCKSTEP_BY_ISA(grouped_conv::conv2d_backward_data)(s, y_grad, weight, x_grad, accumulate);
}
void conv2d_backward_weights(const Conv2dShape& s, const float* x, const float* y_grad, float* weight_grad,
                             bool accumulate) {
  LOCKSTEP_BY_ISA(grouped_conv::conv2d_backward_weights)(s, x, y_grad, weight_grad, accumulate);
}

}  // namespace lockstep::grouped_conv
