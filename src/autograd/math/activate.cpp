#include <algorithm>
#include <iterator>
#include <string>

#include "lockstep/autograd/activation.h"
#include "lockstep/autograd/elementwise.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"

namespace lockstep {

namespace {

constexpr float kKerasSlope = 0.2F;  // keras.activations.leaky_relu

Tensor itself(const Tensor& x) { return x; }
Tensor exact_gelu(const Tensor& x) { return gelu(x); }
Tensor keras_leaky_relu(const Tensor& x) { return leaky_relu(x, kKerasSlope); }

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
    {Activation::kSoftmax, "softmax", softmax},
    {Activation::kLogSoftmax, "log_softmax", log_softmax},
    {Activation::kGELU, "gelu", exact_gelu},
    {Activation::kSiLU, "silu", silu},
    {Activation::kSiLU, "swish", silu},
    {Activation::kLeakyReLU, "leaky_relu", keras_leaky_relu},
    {Activation::kExponential, "exponential", exp},
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

Tensor activate(const Tensor& x, Activation activation) { return row_of(activation).apply(x); }

}  // namespace lockstep
