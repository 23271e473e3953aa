// Initialisation of weights, in place: PyTorch's torch.nn.init without the underscore at the end of its names. Float32
// tensors on any device, InvalidArgument otherwise. Random values come from this thread's next random stream
// (tensor/random.h) and are the same on every device: manual_seed() and the order of the calls decide them, not the
// rank.
//
//   net.apply([](nn::Module& module) {
//     if (auto* layer = dynamic_cast<nn::Linear*>(&module)) nn::init::xavier_uniform(layer->weight);
//   });
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

enum class Nonlinearity { kLinear, kSigmoid, kTanh, kReLU, kLeakyReLU, kSELU };
enum class FanMode { kFanIn, kFanOut };

struct KaimingOptions {
  FanMode mode = FanMode::kFanIn;  // keeps the variance of activations; kFanOut: that of gradients
  Nonlinearity nonlinearity = Nonlinearity::kLeakyReLU;
  float negative_slope = 0;  // of kLeakyReLU; 0: as kReLU
};

namespace init {

void constant(const Tensor& tensor, float value);
void zeros(const Tensor& tensor);
void ones(const Tensor& tensor);
void uniform(const Tensor& tensor, float low = 0,
             float high = 1);  // [low, high); InvalidArgument unless low <= high, both finite
// InvalidArgument below for a mean that is not finite, and for a standard deviation that is negative or not finite.
void normal(const Tensor& tensor, float mean = 0, float standard_deviation = 1);
// Normal, redrawn outside mean +- 2 standard deviations, as TensorFlow's truncated_normal; PyTorch's trunc_normal_ with
// a and b at these bounds. The values' own standard deviation is 0.8796 of the given one.
void truncated_normal(const Tensor& tensor, float mean = 0, float standard_deviation = 1);

// How many inputs each output of a layer has (in), and outputs each input (out). Of weights (out, in): in and out. Of
// convolutions (out, height, width, in): in * height * width and out * height * width; so for any number of extents
// between. InvalidArgument for fewer than two extents, or an extent of 0.
struct Fans {
  std::int64_t in = 0, out = 0;
};
Fans calculate_fans(const Shape& weight);

// By how much a nonlinearity shrinks a standard deviation, inverted: 1 for kLinear and kSigmoid, 5/3 for kTanh, sqrt(2)
// for kReLU, sqrt(2 / (1 + negative_slope^2)) for kLeakyReLU (He et al. 2015, section 2.2), 3/4 for kSELU: PyTorch's
// values.
float calculate_gain(Nonlinearity nonlinearity, float negative_slope = 0.01F);

// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, equations 12
// and 16: the standard deviation is gain * sqrt(2 / (fan in + fan out)); the uniform bound is sqrt(3) times that.
void xavier_uniform(const Tensor& weight, float gain = 1);
void xavier_normal(const Tensor& weight, float gain = 1);

// He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, equations 10 and 14: the standard deviation is gain /
// sqrt(fan), with the nonlinearity's gain; the uniform bound is sqrt(3) times that.
void kaiming_uniform(const Tensor& weight, const KaimingOptions& options = {});
void kaiming_normal(const Tensor& weight, const KaimingOptions& options = {});

}  // namespace init
}  // namespace lockstep::nn
#pragma GCC visibility pop
