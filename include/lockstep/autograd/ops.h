// The differentiable operators. Images are (N, H, W, C). Activations are float32, or float16 or bfloat16 under mixed precision (see
// autocast.h): a result has the type of its input. Weights, biases and losses are float32. Each throws InvalidArgument that names the
// operator, the shapes and what was expected.
#pragma once

#include <array>
#include <cstdint>
#include <variant>

#include "lockstep/core/dtype.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Zeros around an image, or -infinity for max pooling.
struct Padding {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;

  static Padding all(std::int64_t each) { return {each, each, each, each}; }
};
// TensorFlow's SAME: out = ceil(in / stride); total = max((out - 1) * stride + kernel - in, 0), the smaller half first.
struct Same {};
using PaddingRule = std::variant<Padding, Same>;

enum class Activation { kNone, kReLU };

using Size2 = std::array<std::int64_t, 2>;  // height, width

struct Conv2dOptions {
  Size2 stride = {1, 1};
  PaddingRule padding = Padding{};
  Activation activation = Activation::kNone;  // fused into the convolution
};
// x (N, H, W, C), weight (O, KH, KW, C), bias (O) or undefined. Gives (N, H', W', O), H' = (H + padding - KH) / stride + 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options = {});

struct MaxPool2dOptions {
  Size2 stride = {0, 0};  // 0: the window
  PaddingRule padding = Padding{};
};
Tensor max_pool2d(const Tensor& x, Size2 window, const MaxPool2dOptions& options = {});

// See LrnParams in core/kernels.h; the last dimension is the channel.
struct LrnOptions {
  std::int64_t radius = 5;
  float bias = 1, alpha = 1, beta = 0.5f;  // TensorFlow's defaults
};
Tensor local_response_norm(const Tensor& x, const LrnOptions& options = {});

// x (N, I), weight (O, I), bias (O) or undefined. Gives (N, O).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation = Activation::kNone);

Tensor bias_add(const Tensor& x, const Tensor& bias);  // bias (C) to the last dimension of x
Tensor relu(const Tensor& x);
Tensor add(const Tensor& a, const Tensor& b);  // equal shapes
Tensor scale(const Tensor& x, float factor);
Tensor scale_by(const Tensor& x, const Tensor& factor);  // float32; a scalar on x's device, itself not differentiated
Tensor cast(const Tensor& x, DType type);                // among float32, float16, bfloat16; x itself when it has the type
Tensor reshape(const Tensor& x, const Shape& shape);     // the same memory
Tensor flatten(const Tensor& x);                         // (N, ...) to (N, rest), in H, W, C order

// Mean over the batch of -log softmax(logits)[label]. logits (N, K), labels (N) int64 in [0, K). A scalar.
Tensor softmax_cross_entropy(const Tensor& logits, const Tensor& labels);
// sum x^2 / 2 (TensorFlow's l2_loss). A scalar.
Tensor l2_loss(const Tensor& x);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator*(float factor, const Tensor& x) { return scale(x, factor); }
inline Tensor operator*(const Tensor& x, float factor) { return scale(x, factor); }

}  // namespace lockstep
