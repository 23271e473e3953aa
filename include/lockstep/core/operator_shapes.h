// The sizes and parameters that the operators of a kernel table take.
#pragma once

#include <cstdint>

namespace lockstep {

struct Conv2dShape {
  std::int64_t batch, in_height, in_width, in_channels;
  std::int64_t out_height, out_width, out_channels;
  std::int64_t kernel_height, kernel_width;
  std::int64_t stride_height, stride_width;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;  // zeros; SAME may be asymmetric

  bool operator==(const Conv2dShape&) const = default;
};

struct Pool2dShape {
  std::int64_t batch, in_height, in_width, channels;
  std::int64_t out_height, out_width;
  std::int64_t window_height, window_width;
  std::int64_t stride_height, stride_width;
  std::int64_t pad_top, pad_left, pad_bottom, pad_right;  // count as -infinity

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

// x (batch, in) times weight (out, in) transposed gives y (batch, out).
struct LinearShape {
  std::int64_t batch, in_features, out_features;

  bool operator==(const LinearShape&) const = default;
};

// One parameter of a fused optimizer step.
struct SgdTensor {
  float* weight;
  const float* grad;
  float* momentum;  // null when momentum is 0
  std::int64_t count;
};

// Dynamic loss scaling, kept on the device so that the host never waits for it. All floats: a checkpoint saves it as one tensor.
struct LossScaleState {
  float scale;          // what the loss was multiplied by
  float found_bad;      // 1: a gradient of this step is infinite or no number
  float good_steps;     // since the scale last changed
  float skipped_steps;  // in all
};

// After a bad step scale *= backoff; after growth_interval good ones in a row scale *= growth, as long as it stays finite.
struct LossScaleRule {
  float growth, backoff;
  std::int64_t growth_interval;
};

// v = momentum * v + (g + weight_decay * w);  w -= lr * (nesterov ? g + weight_decay * w + momentum * v : v)
// (Sutskever et al. 2013, in PyTorch's form: no dampening, the rate outside the velocity).
struct SgdParams {
  const float* lr;  // on the device: a graph that holds the step follows a schedule
  float momentum, weight_decay;
  bool nesterov;
  // On the device; null: gradients are as they are. Otherwise g is divided by `scale`, and a step with `found_bad` changes nothing.
  const LossScaleState* loss_scale = nullptr;
};

}  // namespace lockstep
