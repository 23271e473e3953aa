// The activation that a layer applies to its result.
#pragma once

#include <string>

#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep {

// kReLU is part of the kernels of convolutions, linear layers and batch normalisation, which write its result at once;
// the others are computed after them.
enum class Activation {
  kNone,
  kReLU,
  kSigmoid,
  kTanh,
  kSoftmax,
  kLogSoftmax,
  kGELU,
  kSiLU,
  kLeakyReLU,
  kExponential,
  kELU,
  kSoftplus,
  kHardswish,
  kReLU6,
  kMish,
};

// Returns the activation that Keras has under this name, as in Dense(46, activation="softmax"): "linear", "relu",
// "sigmoid", "tanh", "softmax", "log_softmax", "gelu", "silu" or "swish", "leaky_relu", "exponential", "elu",
// "softplus", "hard_swish" or "hard_silu", "relu6", "mish". Throws InvalidArgument that lists them for another name.
Activation activation_named(const std::string& name);
// The reverse: "softmax"; "linear" for kNone.
const char* name_of(Activation activation);

// x of any shape; kSoftmax and kLogSoftmax work over the last dimension. Formulas are in elementwise.h and softmax.h;
// kGELU is exact (erf), kLeakyReLU has Keras' slope for negative numbers, 0.2, and kELU's alpha is 1. kNone returns x.
Tensor activate(const Tensor& x, Activation activation);

}  // namespace lockstep
#pragma GCC visibility pop
