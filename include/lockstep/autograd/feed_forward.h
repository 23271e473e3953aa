// The feed-forward block of a transformer as one operator, so that a device can fuse GELU into its matrix products.
#pragma once

#include "lockstep/autograd/elementwise.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Weights (out, in) as of linear(); the biases may be undefined.
struct FeedForwardWeights {
  Tensor up_weight, up_bias;      // (H, I), (H)
  Tensor down_weight, down_bias;  // (O, H), (O)
};

// linear(gelu(linear(x, up_weight, up_bias), approximation), down_weight, down_bias), x (..., I), returns (..., O).
// Backward computes all gradients together. Modules whose weights
// are passed are not called, so that nn::summary() shows no results of them. On a GPU GELU by tanh (kTanh) of 16-bit
// types is part of the products of cuBLASLt; elsewhere the result is that of the three calls. Throws InvalidArgument
// for shapes that do not fit.
Tensor feed_forward(const Tensor& x, const FeedForwardWeights& weights,
                    GeluApproximation approximation = GeluApproximation::kNone);

}  // namespace lockstep
#pragma GCC visibility pop
