// Linear layers: one matrix product each, on the plain weights. Blocked weights would save 10 % of the product and lose
// more than that in reorders, because weights change each step and are as large as the work.
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/runs.h"
#include "kernels/cpu/products/product.h"
#include "kernels/linear_shape.h"

namespace lockstep {

namespace products {

namespace {

bool empty(const LinearShape& s) { return s.batch == 0 || s.in_features == 0 || s.out_features == 0; }

void linear(In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  const LinearShape s = linear_shape(x, y);
  if (empty(s)) return reference_kernels().linear(x, weight, bias, relu, y, stream);
  ReadRuns biases(bias);
  const float* const of_bias = bias ? biases.at(0, s.out_features) : nullptr;
  multiply_into(y, {.rows = s.batch,
                    .columns = s.out_features,
                    .inner = s.in_features,
                    .a = as_stored(x, s.in_features),
                    .b = transposed(weight, s.in_features),
                    .bias = of_bias,
                    .relu = relu});
}

void linear_backward_data(In y_grad, In weight, Out x_grad, Stream& stream) {
  const LinearShape s = linear_shape(x_grad, y_grad);
  if (empty(s)) return reference_kernels().linear_backward_data(y_grad, weight, x_grad, stream);
  multiply_into(x_grad, {.rows = s.batch,
                         .columns = s.in_features,
                         .inner = s.out_features,
                         .a = as_stored(y_grad, s.out_features),
                         .b = as_stored(weight, s.in_features)});
}

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const LinearShape s = linear_shape(x, y_grad);
  if (empty(s)) return reference_kernels().linear_backward_weights(x, y_grad, weight_grad, bias_grad, stream);
  multiply_into(weight_grad, {.rows = s.out_features,
                              .columns = s.in_features,
                              .inner = s.batch,
                              .a = transposed(y_grad, s.out_features),
                              .b = as_stored(x, s.in_features)});
  if (bias_grad) cpu_device().kernels().bias_backward(y_grad, bias_grad, stream);
}

void linear_unary(const UnaryOperation& f, In x, In weight, In bias, Out before, Out y, Stream& stream) {
  linear(x, weight, bias, false, before, stream);
  cpu_device().kernels().unary(f, before, y, stream);
}

void linear_unary_backward(const UnaryOperation& f, In y_grad, In weight, In before, Out before_grad, Stream& stream) {
  linear_backward_data(y_grad, weight, before_grad, stream);
  cpu_device().kernels().unary_backward(f, before, before_grad, before_grad, stream);
}

}  // namespace

}  // namespace products

void use_linear_products(KernelTable& table) {
  table.linear_unary = products::linear_unary;
  table.linear_unary_backward = products::linear_unary_backward;
  table.linear = products::linear;
  table.linear_backward_data = products::linear_backward_data;
  table.linear_backward_weights = products::linear_backward_weights;
}

}  // namespace lockstep
