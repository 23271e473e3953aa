// Operators that normalise activations by their statistics. Weights, biases and statistics are float32; see ops.h for
// the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// What holders of the parts of one batch tell each other, so that each normalises by the statistics of the whole: the
// ranks of a group, by nn::SyncBatchNorm. All make the same calls in the same order. They block, and throw when a part
// is lost.
class StatisticsExchange {
 public:
  virtual ~StatisticsExchange() = default;
  // The values of each part, one part's behind the other's: the same bits for all. All parts give equally many.
  virtual std::vector<double> gather(std::span<const double> own) = 0;
  // In place: the sums over all parts.
  virtual void add_up(std::span<double> values) = 0;
};

struct BatchNormOptions {
  bool training = true;  // by the batch's own statistics, which the running ones follow; else by the running ones
  float momentum = 0.1F;
  float eps = 1e-5F;
  bool relu = false;  // clamps the result at 0 in the same pass
  // In training: x is a part of the batch, maybe of no rows, and mean and variance are those of all parts together.
  // Each training forward gathers 2 C + 1 numbers a part, each backward that computes the gradient of x adds up 2 C; on
  // a GPU both wait for the device.
  std::shared_ptr<StatisticsExchange> exchange = nullptr;
};
// Batch normalisation (Ioffe and Szegedy 2015) over all dimensions of x (..., C) but the last: y = (x - mean) /
// sqrt(variance + eps) * weight + bias, with weight and bias (C), or undefined. In training running = (1 - momentum) *
// running + momentum * the batch's, the variance unbiased (PyTorch's rule); the running statistics (C) may be undefined
// then. Training needs two values a channel at least, in all parts together.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_variance, const BatchNormOptions& options = {});

// Normalisation of each sample. x is float32, float16 or bfloat16, and so is the result; weight and bias may be
// undefined: 1 and 0.

// Over the last dimensions of x, whose extents `over` says (Ba et al. 2016, "Layer normalization"):
//   y = (x - mean) / sqrt(variance + eps) * weight + bias,   variance = mean((x - mean)^2);   weight and bias have the
//   shape `over`.
Tensor layer_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, const Tensor& bias = {},
                  float eps = 1e-5F);

// The same without the mean (Zhang & Sennrich 2019, "Root mean square layer normalization"): y = x / sqrt(mean(x^2) +
// eps) * weight.
Tensor rms_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, float eps = 1e-6F);

// x (N, ..., C), as images (N, H, W, C), in groups of C / groups neighbouring channels (Wu & He 2018, "Group
// normalization"): the mean and the variance are those of a sample's group over all its pixels; weight and bias (C).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  float eps = 1e-5F);

}  // namespace lockstep
#pragma GCC visibility pop
