// Sizes and parameters of the operators of a kernel table.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace lockstep {

struct Conv2dShape {
  std::int64_t batch, in_height, in_width, in_channels;
  std::int64_t out_height, out_width, out_channels;
  std::int64_t kernel_height, kernel_width;
  std::int64_t stride_height, stride_width;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;  // zeros; SAME may be asymmetric
  // Divides in_channels and out_channels into this many ranges; each range of outputs depends only on the range of
  // inputs with the same number.
  std::int64_t groups = 1;
  std::int64_t dilation_height = 1, dilation_width = 1;  // pixels from one tap of the kernel to the next

  std::int64_t group_channels() const { return in_channels / groups; }  // input channels of one filter
  std::int64_t group_filters() const { return out_channels / groups; }
  bool is_dilated() const { return dilation_height != 1 || dilation_width != 1; }
  // The pixels from the first tap to the last one, with both.
  std::int64_t reach_height() const { return (kernel_height - 1) * dilation_height + 1; }
  std::int64_t reach_width() const { return (kernel_width - 1) * dilation_width + 1; }
  bool operator==(const Conv2dShape&) const = default;
};

struct Pool2dShape {
  std::int64_t batch, in_height, in_width, channels;
  std::int64_t out_height, out_width;
  std::int64_t window_height, window_width;
  std::int64_t stride_height, stride_width;
  // Smaller than the window; counts as -infinity for maxima, as 0 for means.
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;

  bool operator==(const Pool2dShape&) const = default;
};

// How an output of resample2d depends on the inputs of one direction; kernels/resample_rule.h has the formulas.
enum class ResampleRule {
  kNearest,        // one input
  kLinear,         // two neighbours, by their distance; pixels are squares
  kLinearCorners,  // the same; pixels are points, so that the first and the last ones coincide
  kMean            // the mean of the inputs of which the output covers a part
};

struct Resample2dShape {
  std::int64_t batch, in_height, in_width, channels;
  std::int64_t out_height, out_width;
  float scale_height, scale_width;  // inputs per output; kMean does not read them
  ResampleRule rule;

  bool operator==(const Resample2dShape&) const = default;
};

// y = x * (bias + alpha * sum over |j - c| <= radius of x_j^2)^-beta, as TensorFlow's
// tf.nn.local_response_normalization (Krizhevsky et al. 2012, section 3.3). PyTorch's alpha is this one times the
// window, 2 * radius + 1.
struct LrnParams {
  std::int64_t rows;      // N * H * W
  std::int64_t channels;  // innermost
  std::int64_t radius;
  float bias, alpha, beta;

  bool operator==(const LrnParams&) const = default;
};

// How the losses of rows or elements are combined: their mean, their sum, or not at all.
enum class Reduction { kMean, kSum, kNone };

inline constexpr std::int64_t kIgnoreIndex = -100;  // PyTorch's default

// See softmax_cross_entropy in operators.def.
struct CrossEntropyParams {
  float label_smoothing = 0;  // in [0, 1]
  Reduction reduction = Reduction::kMean;
  std::int64_t ignore_index = kIgnoreIndex;
};

struct BatchNormParams {
  float eps = 1e-5F;
  bool relu = false;                 // clamp y at 0; backward passes gradients only where y > 0
  bool constant_statistics = false;  // backward: mean and variance do not depend on x
};

struct AttentionParams {
  float scale;  // factor for the scores
  bool causal;  // query t sees the keys 0 to t + causal_offset
  std::int64_t causal_offset = 0;
  // One for each sample, in the host's memory: the keys that its queries may see. Null: all.
  const std::int64_t* key_lengths = nullptr;
  // Added to the scaled scores; -infinity hides a key. On the device; (n, h, t, s) is element n * mask_strides[0] +
  // h * mask_strides[1] + t * mask_strides[2] + s. Null: nothing is added. Only the CPU's kernels take a mask.
  const float* mask = nullptr;
  std::int64_t mask_strides[3] = {};
};

// Determines which elements a dropout keeps: a pure function of these values and the element's number.
struct DropoutParams {
  float p;  // the share of elements that become 0, in [0, 1)
  std::uint64_t seed, stream;
  std::int64_t first_element;  // the number of x's first element
  // If other ranks hold samples between those of x: each row of x has row_elements elements, and after it `skipped`
  // numbers are left out. row_elements 0: x is one row.
  std::int64_t row_elements = 0, skipped = 0;
};

}  // namespace lockstep
#pragma GCC visibility pop
