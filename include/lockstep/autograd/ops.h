// Differentiable operators. Images are (N, H, W, C). Activations are float32, or under mixed precision float16 or
// bfloat16 (see autocast.h); a result has the type of its input. Weights, biases and losses are float32. Each function
// throws InvalidArgument that names the operator, the shapes and the expectation. Elementwise functions are in
// elementwise.h, sums and maxima in reductions.h, and changes of shape in shapes.h.
#pragma once

#include <cstdint>

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/attention.h"
#include "lockstep/autograd/convolution.h"
#include "lockstep/autograd/creation.h"
#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/einsum.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/embedding.h"
#include "lockstep/autograd/feed_forward.h"
#include "lockstep/autograd/indexing.h"
#include "lockstep/autograd/losses.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/normalization.h"
#include "lockstep/autograd/pooling.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/softmax.h"
#include "lockstep/core/dtype.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// See LrnParams in core/operator_shapes.h; the last dimension is the channel.
struct LrnOptions {
  std::int64_t radius = 5;
  float bias = 1, alpha = 1, beta = 0.5f;  // TensorFlow's defaults
};
Tensor local_response_norm(const Tensor& x, const LrnOptions& options = {});

// x (..., I), weight (O, I), bias (O) or undefined. Returns (..., O).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation = Activation::kNone);

Tensor bias_add(const Tensor& x, const Tensor& bias);  // adds bias (C) along the last dimension of x
Tensor relu(const Tensor& x);
Tensor scale(const Tensor& x, float factor);
// Multiplies x by a float32 scalar on its device, which is not differentiated.
Tensor scale_by(const Tensor& x, const Tensor& factor);
// Converts between float32, float16 and bfloat16; returns x if it already has the type.
Tensor cast(const Tensor& x, DType type);

inline Tensor operator*(float factor, const Tensor& x) { return scale(x, factor); }
inline Tensor operator*(const Tensor& x, float factor) { return scale(x, factor); }
inline Tensor operator/(const Tensor& x, float divisor) { return scale(x, 1 / divisor); }

}  // namespace lockstep
#pragma GCC visibility pop
