// Linear layers: one matrix product each, on the plain weights. Blocked weights would save 10 % of the product and lose
// more than that in reorders, because weights change each step and are as large as the work.
#include "kernels/cpu/any_float.h"
#include "kernels/cpu/batch_linear.h"
#include "kernels/cpu/product_amx.h"
#include "kernels/onednn/onednn_kernels.h"
#include "kernels/onednn/product.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::onednn {

namespace {

bool empty(const LinearShape& s) { return s.batch == 0 || s.in_features == 0 || s.out_features == 0; }

void linear(In x, In weight, In bias, bool relu, Out y, Stream& stream) {
  const LinearShape shape = linear_shape(x, y);
  if (empty(shape)) return reference_kernels().linear(x, weight, bias, relu, y, stream);
  if (batch_linear::suits(shape))
    return batch_linear::linear(shape, x.floats(), weight.floats(), bias.floats(), relu, y.floats());
  multiply({'N', 'T', shape.batch, shape.out_features, shape.in_features, x.floats(), weight.floats(), false,
            y.floats(), bias.floats(), relu});
}

void linear_backward_data(In y_grad, In weight, Out x_grad, Stream& stream) {
  const LinearShape shape = linear_shape(x_grad, y_grad);
  if (empty(shape)) return reference_kernels().linear_backward_data(y_grad, weight, x_grad, stream);
  if (batch_linear::suits_backward_data(shape))
    return batch_linear::linear_backward_data(shape, y_grad.floats(), weight.floats(), x_grad.floats(),
                                              x_grad.accumulate);
  multiply({'N', 'N', shape.batch, shape.in_features, shape.out_features, y_grad.floats(), weight.floats(),
            x_grad.accumulate, x_grad.floats()});
}

// oneDNN multiplies the transposed narrower operand by the wider one up to half as fast again as the other way round:
// if sums are long, this is worth transposing the result.
bool is_better_turned(const LinearShape& s) {
  constexpr std::int64_t kLong = 512;
  return cpu_isa() >= Isa::kAvx512 && s.out_features >= 2 * s.in_features && s.batch >= kLong &&
         !amx::suits(s.out_features, s.in_features, s.batch);
}

void turned_weight_gradient(const LinearShape& s, In x, In y_grad, Out weight_grad) {
  const Buffer product = cpu_device().allocate(s.in_features * s.out_features * sizeof(float));
  auto* const turned = reinterpret_cast<float*>(product.data());
  multiply({'T', 'N', s.in_features, s.out_features, s.batch, x.floats(), y_grad.floats(), false, turned});
  batch_linear::transpose(turned, s.in_features, s.out_features, weight_grad.floats(), weight_grad.accumulate);
}

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const LinearShape shape = linear_shape(x, y_grad);
  if (empty(shape)) return reference_kernels().linear_backward_weights(x, y_grad, weight_grad, bias_grad, stream);
  if (batch_linear::suits_backward_weights(shape))
    batch_linear::linear_backward_weights(shape, x.floats(), y_grad.floats(), weight_grad.floats(),
                                          weight_grad.accumulate);
  else if (is_better_turned(shape))
    turned_weight_gradient(shape, x, y_grad, weight_grad);
  else
    multiply({'T', 'N', shape.out_features, shape.in_features, shape.batch, y_grad.floats(), x.floats(),
              weight_grad.accumulate, weight_grad.floats()});
  if (bias_grad) cpu_device().kernels().bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

void use_linear(KernelTable& table) {
  table.linear = any_float<linear>;
  table.linear_backward_data = any_float<linear_backward_data>;
  table.linear_backward_weights = any_float<linear_backward_weights>;
}

}  // namespace lockstep::onednn
