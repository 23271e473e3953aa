// Linear layers: one matrix product each, on the plain weights. Blocked weights would save 10 % of the product and lose
// more than that in reorders, because weights change each step and are as large as the work.
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/products/product.h"
#include "kernels/linear_shape.h"

namespace lockstep {

namespace products {

namespace {

bool empty(const LinearShape& s) { return s.batch == 0 || s.in_features == 0 || s.out_features == 0; }

void linear(In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  const LinearShape s = linear_shape(x, y);
  if (empty(s)) return reference_kernels().linear(x, weight, bias, relu, y, stream);
  multiply({s.batch, s.out_features, s.in_features, as_stored(x.floats(), s.in_features),
            transposed(weight.floats(), s.in_features), y.floats(), s.out_features, false, bias.floats(), relu});
}

void linear_backward_data(In y_grad, In weight, Out x_grad, Stream& stream) {
  const LinearShape s = linear_shape(x_grad, y_grad);
  if (empty(s)) return reference_kernels().linear_backward_data(y_grad, weight, x_grad, stream);
  multiply({s.batch, s.in_features, s.out_features, as_stored(y_grad.floats(), s.out_features),
            as_stored(weight.floats(), s.in_features), x_grad.floats(), s.in_features, x_grad.accumulate});
}

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const LinearShape s = linear_shape(x, y_grad);
  if (empty(s)) return reference_kernels().linear_backward_weights(x, y_grad, weight_grad, bias_grad, stream);
  multiply({s.out_features, s.in_features, s.batch, transposed(y_grad.floats(), s.out_features),
            as_stored(x.floats(), s.in_features), weight_grad.floats(), s.in_features, weight_grad.accumulate});
  if (bias_grad) cpu_device().kernels().bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

}  // namespace products

void use_linear_products(KernelTable& table) {
  table.linear = any_float<products::linear>;
  table.linear_backward_data = any_float<products::linear_backward_data>;
  table.linear_backward_weights = any_float<products::linear_backward_weights>;
}

}  // namespace lockstep
