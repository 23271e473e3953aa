#include <algorithm>
#include <iterator>
#include <string>

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/extend.h"
#include "lockstep/autograd/ops.h"
#include "src/autograd/math/dimensions.h"

namespace lockstep {

namespace {

constexpr float kKerasSlope = 0.2F;  // keras.activations.leaky_relu

Tensor itself(const Tensor& x) { return x; }
Tensor exact_gelu(const Tensor& x) { return gelu(x); }
Tensor keras_leaky_relu(const Tensor& x) { return leaky_relu(x, kKerasSlope); }
Tensor keras_elu(const Tensor& x) { return elu(x); }
Tensor keras_softplus(const Tensor& x) { return softplus(x); }
Tensor softmax_of_last(const Tensor& x) { return softmax(x); }
Tensor log_softmax_of_last(const Tensor& x) { return log_softmax(x); }

struct NamedActivation {
  Activation activation;
  const char* name;
  Tensor (*apply)(const Tensor& x);
};
// The first name of an activation is the one that name_of() returns.
constexpr NamedActivation kActivations[] = {
    {Activation::kNone, "linear", itself},
    {Activation::kReLU, "relu", relu},
    {Activation::kSigmoid, "sigmoid", sigmoid},
    {Activation::kTanh, "tanh", tanh},
    {Activation::kSoftmax, "softmax", softmax_of_last},
    {Activation::kLogSoftmax, "log_softmax", log_softmax_of_last},
    {Activation::kGELU, "gelu", exact_gelu},
    {Activation::kSiLU, "silu", silu},
    {Activation::kSiLU, "swish", silu},
    {Activation::kLeakyReLU, "leaky_relu", keras_leaky_relu},
    {Activation::kExponential, "exponential", exp},
    {Activation::kELU, "elu", keras_elu},
    {Activation::kSoftplus, "softplus", keras_softplus},
    {Activation::kHardswish, "hard_swish", hardswish},
    {Activation::kHardswish, "hard_silu", hardswish},
    {Activation::kReLU6, "relu6", relu6},
    {Activation::kMish, "mish", mish},
};

const NamedActivation& row_of(Activation activation) {
  const auto row = std::find_if(std::begin(kActivations), std::end(kActivations),
                                [=](const NamedActivation& each) { return each.activation == activation; });
  LOCKSTEP_CHECK(row != std::end(kActivations), "activation {} has no name", static_cast<int>(activation));
  return *row;
}

}  // namespace

Activation activation_named(const std::string& name) {
  std::string known;
  for (const NamedActivation& each : kActivations) {
    if (name == each.name) return each.activation;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw InvalidArgument(
      "activation_named: there is no activation '{}', expected one of {}; compute another one in the module's "
      "forward()",
      name, known);
}

const char* name_of(Activation activation) { return row_of(activation).name; }

Tensor prelu(const Tensor& x, const Tensor& weight) {
  check_activation("prelu", "x", x);
  check_input("prelu", "weight", weight, kAnyDims, &x.device());
  if (weight.count() != 1 && (x.shape().dims() == 0 || weight.shape() != Shape{x.shape()[-1]}))
    throw InvalidArgument(
        "prelu: weight is {}, expected one element, or one for each channel of x {}, the last dimension",
        name_argument(weight.shape().text(), weight), x.shape().text());
  return where(gt(x, 0), x, mul(cast(weight, x.dtype()), x));
}

Tensor glu(const Tensor& x, int dim) {
  check_activation("glu", "x", x);
  const std::size_t along = dimension_of("glu", dim, x.shape());
  if (x.shape()[along] % 2 != 0)
    throw InvalidArgument("glu: dimension {} of x {} must have an even extent, for two halves", dim, x.shape().text());
  const std::vector<Tensor> halves = split(x, std::vector(2, x.shape()[along] / 2), static_cast<int>(along));
  return mul(halves[0], sigmoid(halves[1]));
}

Tensor activate(const Tensor& x, Activation activation) { return row_of(activation).apply(x); }

}  // namespace lockstep
