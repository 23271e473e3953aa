// Operators that normalise activations by their statistics. Weights, biases and statistics are float32; see ops.h for the rest.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

struct BatchNormOptions {
  bool training = true;  // by the batch's own statistics, which the running ones follow; else by the running ones
  float momentum = 0.1F;
  float eps = 1e-5F;
  bool relu = false;  // clamps the result at 0 in the same pass
};
// Batch normalisation (Ioffe and Szegedy 2015) over all dimensions of x (..., C) but the last: y = (x - mean) / sqrt(variance + eps) *
// weight + bias, with weight and bias (C), or undefined. In training running = (1 - momentum) * running + momentum * the batch's, the
// variance unbiased (PyTorch's rule); the running statistics (C) may be undefined then. Training needs two values a channel at least.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean, const Tensor& running_variance,
                  const BatchNormOptions& options = {});

// Normalisation of each sample. x is float32, float16 or bfloat16, and so is the result; weight and bias may be undefined: 1 and 0.

// Over the last dimensions of x, whose extents `over` says (Ba et al. 2016, "Layer normalization"):
//   y = (x - mean) / sqrt(variance + eps) * weight + bias,   variance = mean((x - mean)^2);   weight and bias have the shape `over`.
Tensor layer_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, const Tensor& bias = {}, float eps = 1e-5F);

// The same without the mean (Zhang & Sennrich 2019, "Root mean square layer normalization"): y = x / sqrt(mean(x^2) + eps) * weight.
Tensor rms_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, float eps = 1e-6F);

// x (N, ..., C), as images (N, H, W, C), in groups of C / groups neighbouring channels (Wu & He 2018, "Group normalization"): the mean and
// the variance are those of a sample's group over all its pixels; weight and bias (C).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {}, float eps = 1e-5F);

}  // namespace lockstep
#pragma GCC visibility pop
