// Operators that normalise activations by their statistics. Weights, biases and statistics are float32; see ops.h for
// the other types.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// Lets the holders of the parts of one batch (for nn::SyncBatchNorm: the ranks of a group) exchange values, so that
// each of them normalises by the statistics of the entire batch. All make the same calls in the same order. The calls
// block, and throw if a part is lost.
class StatisticsExchange {
 public:
  virtual ~StatisticsExchange() = default;
  // Returns the values of all parts, one part after the other; the result is the same, bit for bit, for all. All parts
  // pass the same number of values.
  virtual std::vector<double> gather(std::span<const double> own) = 0;
  // Replaces the values by their sums over all parts.
  virtual void add_up(std::span<double> values) = 0;
};

struct BatchNormOptions {
  // True: normalise by the batch's statistics and update the running ones; false: use the running ones.
  bool training = true;
  float momentum = 0.1F;
  float eps = 1e-5F;
  bool relu = false;  // clamp the result at 0 in the same pass
  // In training: x is one part of the batch, possibly with zero rows, and mean and variance are computed over all
  // parts. Each training forward gathers 2 C + 1 numbers per part; each backward that computes the gradient of x sums 2
  // C numbers. On a GPU both wait for the device.
  std::shared_ptr<StatisticsExchange> exchange = nullptr;
};
// Batch normalisation (Ioffe and Szegedy 2015) over all dimensions of x (..., C) except the last: y = (x - mean) /
// sqrt(variance + eps) * weight + bias, with weight and bias (C), or undefined. Training sets running = (1 - momentum)
// * running + momentum * batch, with the unbiased variance (PyTorch's rule); the running statistics (C) may be
// undefined then. Training needs at least two values per channel, in all parts together.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                  const Tensor& running_var, const BatchNormOptions& options = {});

// Normalisation of each sample. x is float32, float16 or bfloat16, and the result has its type. An undefined weight
// counts as 1, an undefined bias as 0.

// Normalises over the last dimensions of x, whose extents are `over` (Ba et al. 2016, "Layer normalization"): y = (x -
// mean) / sqrt(variance + eps) * weight + bias, variance = mean((x - mean)^2). Weight and bias have the shape `over`.
Tensor layer_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, const Tensor& bias = {},
                  float eps = 1e-5F);

// {a + b, layer_norm(a + b, ...)} in one pass, as the blocks of a transformer need it: the sum goes on, its norm goes
// into the next layer. If shapes or types differ, the two calls.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& a, const Tensor& b, const Shape& over, const Tensor& weight = {},
                                         const Tensor& bias = {}, float eps = 1e-5F);

// layer_norm without the mean (Zhang & Sennrich 2019, "Root mean square layer normalization"): y = x / sqrt(mean(x^2) +
// eps) * weight.
Tensor rms_norm(const Tensor& x, const Shape& over, const Tensor& weight = {}, float eps = 1e-6F);

// Normalises x (N, ..., C), such as images (N, H, W, C), in groups of C / groups neighbouring channels (Wu & He 2018,
// "Group normalization"). Mean and variance are computed per sample and group, over all pixels. Weight and bias are
// (C).
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                  float eps = 1e-5F);

}  // namespace lockstep
#pragma GCC visibility pop
