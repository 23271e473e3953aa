// The sizes and parameters that the operators of a kernel table take.
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
  // Divides in_channels and out_channels: each of so many ranges of outputs, in their order, sees its range of inputs
  // alone.
  std::int64_t groups = 1;

  std::int64_t group_channels() const { return in_channels / groups; }  // those that a filter sees
  std::int64_t group_filters() const { return out_channels / groups; }
  bool operator==(const Conv2dShape&) const = default;
};

struct Pool2dShape {
  std::int64_t batch, in_height, in_width, channels;
  std::int64_t out_height, out_width;
  std::int64_t window_height, window_width;
  std::int64_t stride_height, stride_width;
  std::int64_t pad_top, pad_left, pad_bottom,
      pad_right;  // smaller than the window; count as -infinity of maxima, 0 of means

  bool operator==(const Pool2dShape&) const = default;
};

// y = x * (bias + alpha * sum over |j - c| <= radius of x_j^2)^-beta : TensorFlow's tf.nn.local_response_normalization
// (Krizhevsky et al. 2012, section 3.3). PyTorch's alpha is ours times the window, 2 * radius + 1.
struct LrnParams {
  std::int64_t rows;      // N * H * W
  std::int64_t channels;  // innermost
  std::int64_t radius;
  float bias, alpha, beta;

  bool operator==(const LrnParams&) const = default;
};

// Of the losses of rows or elements: their mean, their sum, or each one for itself.
enum class Reduction { kMean, kSum, kNone };

inline constexpr std::int64_t kIgnoreIndex = -100;  // PyTorch's default

// See softmax_cross_entropy in operators.def.
struct CrossEntropyParams {
  float label_smoothing = 0;  // 0 .. 1
  Reduction reduction = Reduction::kMean;
  std::int64_t ignore_index = kIgnoreIndex;
};

struct BatchNormParams {
  float eps = 1e-5F;
  bool relu = false;                 // y is clamped at 0, and backward passes only where it was not
  bool constant_statistics = false;  // backward: mean and variance do not depend on x
};

struct AttentionParams {
  float scale;  // of the scores
  bool causal;
};

// Which elements a dropout keeps: a pure function of these and of the element's number.
struct DropoutParams {
  float p;  // the share that becomes 0, in [0, 1)
  std::uint64_t seed, stream;
  std::int64_t first_element;  // the number of x's first element
  // Where other ranks have the samples between x's: x's rows have row_elements each, and behind each row's numbers come
  // `skipped` numbers of others. row_elements 0: x is one row.
  std::int64_t row_elements = 0, skipped = 0;
};

}  // namespace lockstep
#pragma GCC visibility pop
