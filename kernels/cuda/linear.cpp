// Linear layers by cuBLASLt. Its matrices are column-major: our row-major (rows, columns) is its (columns, rows), so
//   y^T       (out, batch) = weight (out, in)   * x^T (in, batch)      with the bias in the epilogue
//   x_grad^T  (in, batch)  = weight^T (in, out) * y_grad^T (out, batch)
//   weight_grad^T (in, out) = x^T (in, batch)   * y_grad (batch, out)
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/product.h"
#include "kernels/linear_shape.h"

namespace lockstep::cuda {

namespace {

bool is_empty(const LinearShape& shape) {
  return shape.batch == 0 || shape.in_features == 0 || shape.out_features == 0;
}

void product_and_bias(In x, In weight, In bias, Out y, Stream& stream) {
  const LinearShape shape = linear_shape(x, y);
  for (const InputView& other : {weight, bias, InputView(y)}) require_type(x.dtype, other);
  if (is_empty(shape)) {
    clear(y, stream);
  } else {
    CublasProduct product{CUBLAS_OP_T,
                          CUBLAS_OP_N,
                          shape.out_features,
                          shape.batch,
                          shape.in_features,
                          bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT,
                          false,
                          x.dtype,
                          y.dtype,
                          alignment_of(weight.data),
                          alignment_of(x.data),
                          alignment_of(y.data),
                          bias ? alignment_of(bias.data) : 0};
    if (multiply_with_epilogue(product, weight.data, x.data, bias.data, y.data, stream)) return;
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // narrow products have no fused form
    product.bias_alignment = 0;
    multiply(product, weight.data, x.data, y.data, stream);
  }
  if (bias) add_bias(y, bias, stream);
}

}  // namespace

// ReLU is not part of the epilogue, because cuBLASLt's is a maximum with 0, which turns NaN into 0 and hides a broken
// model.
void linear(In x, In weight, In bias, bool relu_after, Out y, Stream& stream) {
  product_and_bias(x, weight, bias, y, stream);
  if (relu_after) relu(y, y, stream);
}

void linear_backward_data(In y_grad, In weight, Out x_grad, Stream& stream) {
  const LinearShape shape = linear_shape(x_grad, y_grad);
  for (const InputView& other : {weight, InputView(x_grad)}) require_type(y_grad.dtype, other);
  if (is_empty(shape)) return clear(x_grad, stream);
  multiply({CUBLAS_OP_N, CUBLAS_OP_N, shape.in_features, shape.batch, shape.out_features, CUBLASLT_EPILOGUE_DEFAULT,
            x_grad.accumulate, y_grad.dtype, x_grad.dtype},
           weight.data, y_grad.data, x_grad.data, stream);
}

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const LinearShape shape = linear_shape(x, y_grad);
  require_type(x.dtype, y_grad);
  if (is_empty(shape))
    clear(weight_grad, stream);
  else
    multiply({CUBLAS_OP_N, CUBLAS_OP_T, shape.in_features, shape.out_features, shape.batch, CUBLASLT_EPILOGUE_DEFAULT,
              weight_grad.accumulate, x.dtype, DType::kFloat32},
             x.data, y_grad.data, weight_grad.floats(), stream);
  if (bias_grad) bias_backward(y_grad, bias_grad, stream);
}

void use_linear(KernelTable& table) {
  table.linear = linear;
  table.linear_backward_data = linear_backward_data;
  table.linear_backward_weights = linear_backward_weights;
}

}  // namespace lockstep::cuda
