// Linear layers: one matrix product each, on the plain weights. Blocked weights would win 10 % of the product and lose
// more than that to reorders, as weights change each step and are as large as the work.
#include "kernels/cpu/batch_linear.h"
#include "kernels/onednn/kernels.h"
#include "kernels/onednn/onednn.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

using Index = std::int64_t;

// c (rows, columns) = a * b + (accumulate ? c : 0), all row-major; 'T' says that the operand lies transposed.
void multiply(char transpose_a, char transpose_b, Index rows, Index columns, Index inner, const float* a, const float* b, bool accumulate,
              float* c) {
  const Index stride_a = transpose_a == 'T' ? rows : inner;
  const Index stride_b = transpose_b == 'T' ? inner : columns;
  const auto status =
      dnnl::sgemm(transpose_a, transpose_b, rows, columns, inner, 1, a, stride_a, b, stride_b, accumulate ? 1 : 0, c, columns);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", rows, columns, inner,
                 static_cast<int>(status));
}

bool empty(const LinearShape& s) { return s.batch == 0 || s.in_features == 0 || s.out_features == 0; }

}  // namespace

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  if (empty(shape)) return reference_kernels().linear(shape, x, weight, bias, relu, y, stream);
  if (has_one_thread() && batch_linear::suits(shape)) return batch_linear::linear(shape, x, weight, bias, relu, y);
  multiply('N', 'T', shape.batch, shape.out_features, shape.in_features, x, weight, false, y);
  const KernelTable& kernels = cpu_device().kernels();
  if (bias != nullptr) kernels.bias(y, bias, shape.batch, shape.out_features, stream);
  if (relu) kernels.relu(y, y, shape.batch * shape.out_features, stream);
}

void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  if (empty(shape)) return reference_kernels().linear_backward_data(shape, y_grad, weight, x_grad, accumulate, stream);
  multiply('N', 'N', shape.batch, shape.in_features, shape.out_features, y_grad, weight, accumulate, x_grad);
}

void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  if (empty(shape))
    return reference_kernels().linear_backward_weights(shape, x, y_grad, weight_grad, bias_grad, accumulate_weight, accumulate_bias,
                                                       stream);
  multiply('T', 'N', shape.out_features, shape.in_features, shape.batch, y_grad, x, accumulate_weight, weight_grad);
  if (bias_grad != nullptr)
    cpu_device().kernels().bias_backward(y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

}  // namespace lockstep::onednn
