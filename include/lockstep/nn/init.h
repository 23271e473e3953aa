// Initialisation of weights, in place: torch.nn.init without the trailing underscores. Tensors are float32, on any
// device; InvalidArgument otherwise. Random values come from this thread's next random stream (tensor/random.h) and are
// the same on every device: they depend on manual_seed() and the order of the calls, not on the rank.
//
//   net.apply([](nn::Module& module) {
//     if (auto* layer = dynamic_cast<nn::Linear*>(&module)) nn::init::xavier_uniform(layer->weight);
//   });
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::nn {

class Module;

enum class Nonlinearity { kLinear, kSigmoid, kTanh, kReLU, kLeakyReLU, kSELU };
enum class FanMode { kFanIn, kFanOut };

struct KaimingOptions {
  FanMode mode = FanMode::kFanIn;  // preserves the variance of activations; kFanOut: that of gradients
  Nonlinearity nonlinearity = Nonlinearity::kLeakyReLU;
  float negative_slope = 0;  // of kLeakyReLU; 0: same as kReLU
};

namespace init {

void constant(const Tensor& tensor, float value);
void zeros(const Tensor& tensor);
void ones(const Tensor& tensor);
// Uniform in [low, high). Throws InvalidArgument unless low <= high and both are finite.
void uniform(const Tensor& tensor, float low = 0, float high = 1);
// The functions below throw InvalidArgument if the mean is not finite, or the standard deviation is negative or not
// finite.
void normal(const Tensor& tensor, float mean = 0, float standard_deviation = 1);
// Normal, drawn again outside mean +- 2 standard deviations, as TensorFlow's truncated_normal and PyTorch's
// trunc_normal_ with a and b at these bounds. The standard deviation of the values is 0.8796 times the given one.
void truncated_normal(const Tensor& tensor, float mean = 0, float standard_deviation = 1);

// The number of inputs of each output of a layer (in), and of outputs of each input (out). For weights (out, in): in
// and out. For convolutions (out, height, width, in): in * height * width and out * height * width, and likewise for
// other numbers of dimensions. Throws InvalidArgument for fewer than two dimensions or an extent of 0.
struct Fans {
  std::int64_t in = 0, out = 0;
};
Fans calculate_fans(const Shape& weight);

// The inverse of the factor by which a nonlinearity shrinks the standard deviation, with PyTorch's values: 1 for
// kLinear and kSigmoid, 5/3 for kTanh, sqrt(2) for kReLU, sqrt(2 / (1 + negative_slope^2)) for kLeakyReLU (He et al.
// 2015, section 2.2), 3/4 for kSELU.
float calculate_gain(Nonlinearity nonlinearity, float negative_slope = 0.01F);

// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010, equations 12
// and 16: the standard deviation is gain * sqrt(2 / (fan in + fan out)); the uniform bound is sqrt(3) times that.
void xavier_uniform(const Tensor& weight, float gain = 1);
void xavier_normal(const Tensor& weight, float gain = 1);

// He, Zhang, Ren and Sun, "Delving deep into rectifiers", 2015, equations 10 and 14: the standard deviation is gain /
// sqrt(fan), with the nonlinearity's gain; the uniform bound is sqrt(3) times that.
void kaiming_uniform(const Tensor& weight, const KaimingOptions& options = {});
void kaiming_normal(const Tensor& weight, const KaimingOptions& options = {});

// Keras' default initialisation, of a module and all below it, in the order of apply(): Linear, Conv1d and Conv2d get
// xavier_uniform weights (Keras' GlorotUniform; the fans of a convolution in groups are those of its weight's shape) and
// biases of 0, Embedding uniform weights in [-0.05, 0.05), with its padding row 0. Other modules begin alike in both.
// Call it before the module is wrapped in DistributedDataParallel.
//   auto net = std::make_unique<Net>();
//   nn::init::keras_init(*net);
void keras_init(Module& module);

}  // namespace init
}  // namespace lockstep::nn
#pragma GCC visibility pop
