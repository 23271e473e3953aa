// Matrix products: linear layers, and batches of products.
#include "kernels/cpu/reference/reference.h"
#include "kernels/linear_shape.h"

namespace lockstep::reference {

// -- linear layers: y = x * weight^T + bias; dx = dy * weight; dweight = dy^T * x

namespace {

void linear(In x, In weight, In bias, bool relu, Out y, Stream&) {
  const auto [batch, ins, outs] = linear_shape(x, y);
  const float *from = x.floats(), *weights = weight.floats();
  for (Index n = 0; n < batch; ++n)
    for (Index o = 0; o < outs; ++o) {
      double sum = bias ? bias.floats()[o] : 0;
      for (Index i = 0; i < ins; ++i) sum += static_cast<double>(from[n * ins + i]) * weights[o * ins + i];
      const auto value = static_cast<float>(sum);
      y.floats()[n * outs + o] = relu ? clamp_at_zero(value) : value;
    }
}

void linear_backward_data(In y_grad, In weight, Out x_grad, Stream&) {
  const auto [batch, ins, outs] = linear_shape(x_grad, y_grad);
  const float *grad = y_grad.floats(), *weights = weight.floats();
  for (Index n = 0; n < batch; ++n)
    for (Index i = 0; i < ins; ++i) {
      double sum = 0;
      for (Index o = 0; o < outs; ++o) sum += static_cast<double>(grad[n * outs + o]) * weights[o * ins + i];
      store(x_grad.floats()[n * ins + i], sum, x_grad.accumulate);
    }
}

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const auto [batch, ins, outs] = linear_shape(x, y_grad);
  const float *from = x.floats(), *grad = y_grad.floats();
  for (Index o = 0; o < outs; ++o)
    for (Index i = 0; i < ins; ++i) {
      double sum = 0;
      for (Index n = 0; n < batch; ++n) sum += static_cast<double>(grad[n * outs + o]) * from[n * ins + i];
      store(weight_grad.floats()[o * ins + i], sum, weight_grad.accumulate);
    }
  if (bias_grad) bias_backward(y_grad, bias_grad, stream);
}

}  // namespace

void use_linear(KernelTable& table) {
  table.linear = any_float<linear>;
  table.linear_backward_data = any_float<linear_backward_data>;
  table.linear_backward_weights = any_float<linear_backward_weights>;
}

// -- a linear layer and an elementwise function

namespace {

void linear_unary(const UnaryOperation& f, In x, In weight, In bias, Out before, Out y, Stream& stream) {
  linear(x, weight, bias, false, before, stream);
  reference_kernels().unary(f, before, y, stream);
}

void linear_unary_backward(const UnaryOperation& f, In y_grad, In weight, In before, Out before_grad, Stream& stream) {
  linear_backward_data(y_grad, weight, before_grad, stream);
  reference_kernels().unary_backward(f, before, before_grad, before_grad, stream);
}

}  // namespace

void use_linear_unary(KernelTable& table) {
  table.linear_unary = any_float<linear_unary>;
  table.linear_unary_backward = any_float<linear_unary_backward>;
}

// -- batches of matrix products

namespace {

void matmul(In left, bool transpose_left, In right, bool transpose_right, Out out, Stream&) {
  const Index batch = out.shape[0], rows = out.shape[1], columns = out.shape[2],
              inner = left.shape[transpose_left ? 1 : 2];
  for (Index n = 0; n < batch; ++n) {
    const float *a = left.floats() + n * rows * inner, *b = right.floats() + n * inner * columns;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) {
        double sum = 0;
        for (Index k = 0; k < inner; ++k)
          sum += static_cast<double>(a[transpose_left ? k * rows + i : i * inner + k]) *
                 b[transpose_right ? j * inner + k : k * columns + j];
        store(out.floats()[(n * rows + i) * columns + j], sum, out.accumulate);
      }
  }
}

}  // namespace

void use_matmul(KernelTable& table) { table.matmul = any_float<matmul>; }

}  // namespace lockstep::reference
