// Linear layers: y = x * weight^T + bias; dx = dy * weight; dweight = dy^T * x.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream&) {
  for (Index n = 0; n < shape.batch; ++n)
    for (Index o = 0; o < shape.out_features; ++o) {
      double sum = bias == nullptr ? 0 : bias[o];
      for (Index i = 0; i < shape.in_features; ++i)
        sum += static_cast<double>(x[n * shape.in_features + i]) * weight[o * shape.in_features + i];
      const auto value = static_cast<float>(sum);
      y[n * shape.out_features + o] = relu ? clamp_at_zero(value) : value;
    }
}

void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate, Stream&) {
  for (Index n = 0; n < shape.batch; ++n)
    for (Index i = 0; i < shape.in_features; ++i) {
      double sum = 0;
      for (Index o = 0; o < shape.out_features; ++o)
        sum += static_cast<double>(y_grad[n * shape.out_features + o]) * weight[o * shape.in_features + i];
      store(x_grad[n * shape.in_features + i], sum, accumulate);
    }
}

void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  for (Index o = 0; o < shape.out_features; ++o)
    for (Index i = 0; i < shape.in_features; ++i) {
      double sum = 0;
      for (Index n = 0; n < shape.batch; ++n) sum += static_cast<double>(y_grad[n * shape.out_features + o]) * x[n * shape.in_features + i];
      store(weight_grad[o * shape.in_features + i], sum, accumulate_weight);
    }
  if (bias_grad != nullptr) bias_backward(y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

}  // namespace lockstep::reference
