// The shapes on which every device's kernels are tested: odd ones, because there kernels go wrong.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/linear_shape.h"
#include "lockstep/core/kernels.h"

namespace lockstep::testing {

// Zero, one, primes, multiples of four and their neighbours, more than a block of any kernel.
inline const std::vector<std::int64_t> kCounts = {0, 1, 7, 16, 17, 64, 1003, 70001};

inline Conv2dShape dilated(std::int64_t height, std::int64_t width, Conv2dShape s) {
  s.dilation_height = height, s.dilation_width = width;
  s.out_height = (s.in_height + s.pad_top + s.pad_bottom - s.reach_height()) / s.stride_height + 1;
  s.out_width = (s.in_width + s.pad_left + s.pad_right - s.reach_width()) / s.stride_width + 1;
  return s;
}

inline Conv2dShape conv2d_shape(std::int64_t batch, std::int64_t height, std::int64_t width, std::int64_t channels,
                                std::int64_t out, std::int64_t kernel_height, std::int64_t kernel_width,
                                std::int64_t stride_height, std::int64_t stride_width,
                                std::array<std::int64_t, 4> pads) {
  Conv2dShape shape{batch,        height,        width,        channels, 0,       0,       out,    kernel_height,
                    kernel_width, stride_height, stride_width, pads[0],  pads[1], pads[2], pads[3]};
  return dilated(1, 1, shape);
}

inline Conv2dShape in_groups(std::int64_t groups, Conv2dShape shape) {
  shape.groups = groups;
  return shape;
}

// One channel, primes and multiples of 64, uneven padding, strides larger than the kernel, an empty batch; groups,
// including depthwise ones.
inline const std::vector<Conv2dShape>& conv2d_shapes() {
  static const std::vector<Conv2dShape> kShapes = {
      conv2d_shape(1, 4, 4, 1, 1, 3, 3, 1, 1, {0, 0, 0, 0}), conv2d_shape(3, 5, 7, 3, 5, 3, 2, 1, 1, {1, 0, 0, 1}),
      conv2d_shape(1, 9, 8, 5, 3, 5, 5, 2, 3, {2, 2, 2, 2}), conv2d_shape(3, 6, 6, 64, 64, 5, 5, 2, 1, {2, 2, 2, 2}),
      conv2d_shape(2, 12, 12, 3, 64, 5, 5, 1, 1, {2, 2, 2, 2}), conv2d_shape(3, 7, 5, 16, 17, 1, 1, 1, 1, {0, 0, 0, 0}),
      conv2d_shape(1, 8, 8, 64, 1, 3, 3, 2, 2, {0, 0, 1, 1}), conv2d_shape(2, 3, 3, 2, 4, 3, 3, 1, 1, {3, 0, 1, 2}),
      conv2d_shape(2, 9, 7, 5, 128, 3, 5, 2, 3, {0, 4, 2, 1}), conv2d_shape(1, 3, 2, 1, 64, 2, 7, 1, 2, {1, 6, 0, 6}),
      conv2d_shape(2, 9, 8, 3, 4, 2, 1, 3, 4, {0, 0, 0, 0}), conv2d_shape(3, 9, 8, 3, 16, 3, 3, 1, 1, {1, 1, 1, 1}),
      conv2d_shape(17, 5, 6, 2, 96, 3, 7, 2, 1, {0, 2, 1, 3}), conv2d_shape(0, 6, 6, 3, 4, 3, 3, 1, 1, {1, 1, 1, 1}),
      // oneDNN 2.6 computes wrong gradients of these in bfloat16.
      conv2d_shape(1, 4, 1, 16, 16, 3, 3, 2, 2, {1, 1, 1, 1}),
      conv2d_shape(1, 10, 11, 16, 11, 1, 1, 1, 1, {0, 0, 0, 0}),
      conv2d_shape(1, 3, 12, 2, 6, 2, 11, 1, 1, {1, 0, 1, 0}),  // the emulated cuDNN refuses kernels of this width
      in_groups(2, conv2d_shape(3, 5, 7, 6, 4, 3, 2, 1, 1, {1, 0, 0, 1})),
      in_groups(3, conv2d_shape(1, 9, 8, 15, 9, 5, 5, 2, 3, {2, 2, 2, 2})),
      in_groups(4, conv2d_shape(2, 6, 6, 64, 128, 3, 3, 1, 1, {1, 1, 1, 1})),
      in_groups(64, conv2d_shape(2, 9, 7, 64, 64, 3, 3, 1, 1, {1, 1, 1, 1})),
      in_groups(32, conv2d_shape(3, 6, 19, 32, 32, 3, 5, 1, 2, {1, 2, 0, 1})),
      in_groups(8, conv2d_shape(3, 5, 17, 32, 32, 3, 3, 1, 1, {1, 1, 1, 1})),
      in_groups(24, conv2d_shape(2, 4, 1, 48, 48, 2, 3, 1, 1, {1, 0, 0, 2})),
      in_groups(4, conv2d_shape(17, 3, 3, 32, 32, 3, 3, 1, 1, {2, 2, 0, 1})),
      in_groups(4, conv2d_shape(1, 9, 300, 16, 16, 3, 3, 1, 1, {1, 1, 1, 0})),
      in_groups(7, conv2d_shape(3, 8, 5, 7, 7, 3, 3, 2, 2, {0, 1, 1, 0})),
      in_groups(66, conv2d_shape(1, 6, 6, 66, 66, 5, 5, 2, 1, {2, 2, 2, 2})),
      in_groups(34, conv2d_shape(17, 3, 2, 34, 34, 2, 7, 1, 1, {1, 6, 0, 1})),
      in_groups(5, conv2d_shape(2, 4, 5, 5, 15, 2, 2, 1, 1, {0, 0, 0, 0})),
      in_groups(6, conv2d_shape(2, 9, 8, 6, 6, 2, 1, 3, 4, {0, 0, 0, 0})),
      in_groups(2, conv2d_shape(2, 9, 8, 4, 6, 2, 3, 3, 4, {0, 1, 0, 1})),
      in_groups(3, conv2d_shape(2, 3, 3, 3, 3, 3, 3, 1, 1, {3, 0, 1, 2})),
      in_groups(4, conv2d_shape(0, 6, 6, 4, 4, 3, 3, 1, 1, {1, 1, 1, 1})),
      dilated(2, 3, conv2d_shape(2, 9, 12, 3, 5, 3, 2, 1, 1, {1, 2, 0, 1})),
      dilated(2, 2, conv2d_shape(2, 12, 12, 16, 16, 3, 3, 1, 1, {2, 2, 2, 2})),  // Winograd's but for the dilation
      dilated(1, 3, conv2d_shape(3, 5, 16, 16, 32, 1, 5, 2, 3, {0, 4, 0, 4})),
      dilated(2, 1, conv2d_shape(1, 9, 24, 2, 6, 2, 11, 1, 1, {1, 0, 1, 0})),
      dilated(3, 2, in_groups(32, conv2d_shape(2, 9, 8, 32, 32, 3, 3, 1, 1, {3, 2, 3, 2}))),
      dilated(2, 2, in_groups(3, conv2d_shape(2, 11, 10, 6, 9, 3, 3, 2, 1, {2, 2, 1, 3}))),
      dilated(4, 4, conv2d_shape(1, 3, 3, 8, 8, 3, 3, 1, 1, {4, 4, 4, 4}))};  // most taps see only padding
  return kShapes;
}

inline const std::vector<LinearShape>& linear_shapes() {
  static const std::vector<LinearShape> kShapes = {{1, 1, 1},      {3, 5, 7},       {128, 192, 10},  {2, 300, 65},
                                                   {0, 4, 3},      {3, 64, 64},     {64, 33, 5},     {192, 70, 64},
                                                   {66, 1030, 64}, {128, 1030, 20}, {5, 192, 130},   {70, 128, 53},
                                                   {96, 64, 200},  {100, 128, 49},  {13, 1024, 1029}};
  return kShapes;
}

// Images of size x (size + 2).
inline Pool2dShape pool2d_shape(std::int64_t batch, std::int64_t size, std::int64_t channels, std::int64_t window,
                                std::int64_t stride, std::int64_t before, std::int64_t after) {
  const std::int64_t out = (size + before + after - window) / stride + 1;
  const std::int64_t width = size + 2, out_width = (width + before + after - window) / stride + 1;
  return {batch, size, width, channels, out, out_width, window, window, stride, stride, before, before, after, after};
}

inline const std::vector<Pool2dShape>& pool2d_shapes() {
  static const std::vector<Pool2dShape> kShapes = {
      pool2d_shape(1, 4, 1, 2, 2, 0, 0), pool2d_shape(3, 7, 3, 3, 2, 1, 1), pool2d_shape(2, 6, 5, 3, 2, 0, 1),
      pool2d_shape(1, 5, 64, 3, 1, 1, 1), pool2d_shape(3, 12, 64, 3, 2, 1, 1), pool2d_shape(1, 9, 130, 2, 3, 0, 0),
      pool2d_shape(1, 6, 17, 5, 2, 2, 2), pool2d_shape(0, 4, 3, 2, 2, 0, 0), pool2d_shape(2, 4, 0, 2, 2, 0, 0),
      // Windows that GPUs know at compile time, with four channels per thread, and one whose numbers need 64 bits
      // there.
      pool2d_shape(3, 6, 12, 2, 2, 0, 0), pool2d_shape(1, 5, 4, 2, 2, 1, 0), pool2d_shape(2, 7, 8, 3, 2, 0, 2),
      pool2d_shape(2, 3, 8, 3, std::int64_t{1} << 31, 1, 1)};
  return kShapes;
}

inline std::vector<LrnParams> lrn_params() {
  std::vector<LrnParams> all;
  for (const std::int64_t channels : {1, 3, 5, 64, 200})
    for (const std::int64_t radius : {0, 1, 2, 4, 7})
      for (const float beta : {0.75F, 0.5F, 0.6F})
        for (const std::int64_t rows : {0, 1, 3, 77}) all.push_back({rows, channels, radius, 1, 0.3F, beta});
  return all;
}

inline Shape x_shape(const Conv2dShape& s) { return {s.batch, s.in_height, s.in_width, s.in_channels}; }
inline Shape y_shape(const Conv2dShape& s) { return {s.batch, s.out_height, s.out_width, s.out_channels}; }
inline Shape weight_shape(const Conv2dShape& s) {
  return {s.out_channels, s.kernel_height, s.kernel_width, s.group_channels()};
}
inline Shape bias_shape(const Conv2dShape& s) { return {s.out_channels}; }
inline Shape x_shape(const LinearShape& s) { return {s.batch, s.in_features}; }
inline Shape y_shape(const LinearShape& s) { return {s.batch, s.out_features}; }
inline Shape weight_shape(const LinearShape& s) { return {s.out_features, s.in_features}; }
inline Shape bias_shape(const LinearShape& s) { return {s.out_features}; }
inline Shape x_shape(const Pool2dShape& s) { return {s.batch, s.in_height, s.in_width, s.channels}; }
inline Shape y_shape(const Pool2dShape& s) { return {s.batch, s.out_height, s.out_width, s.channels}; }
inline Shape x_shape(const LrnParams& p) { return {p.rows, p.channels}; }

inline std::string name_of(const Conv2dShape& s) {
  return fmt::format("x ({}, {}, {}, {}) kernel {}x{} to {} stride {}x{} pads {} {} {} {}, groups {}, dilation {}x{}",
                     s.batch, s.in_height, s.in_width, s.in_channels, s.kernel_height, s.kernel_width, s.out_channels,
                     s.stride_height, s.stride_width, s.pad_top, s.pad_left, s.pad_bottom, s.pad_right, s.groups,
                     s.dilation_height, s.dilation_width);
}
inline std::string name_of(const LinearShape& s) {
  return fmt::format("linear ({}, {}) to {}", s.batch, s.in_features, s.out_features);
}
inline std::string name_of(const Pool2dShape& s) {
  return fmt::format("{} images of {} x {} x {}, window {}, stride {}", s.batch, s.in_height, s.in_width, s.channels,
                     s.window_height, s.stride_height);
}
inline std::string name_of(const LrnParams& p) {
  return fmt::format("{} rows of {}, radius {}, beta {}", p.rows, p.channels, p.radius, p.beta);
}

}  // namespace lockstep::testing
