// Linear layers by cuBLASLt. Its matrices are column-major: our row-major (rows, columns) is its (columns, rows), so
//   y^T       (out, batch) = weight (out, in)   * x^T (in, batch)      with the bias in the epilogue
//   x_grad^T  (in, batch)  = weight^T (in, out) * y_grad^T (out, batch)
//   weight_grad^T (in, out) = x^T (in, batch)   * y_grad (batch, out)    with the bias' gradient in the epilogue
#include <optional>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/product.h"
#include "kernels/linear_shape.h"

namespace lockstep::cuda {

namespace {

bool is_empty(const LinearShape& shape) {
  return shape.batch == 0 || shape.in_features == 0 || shape.out_features == 0;
}

CublasProduct forward_product(const LinearShape& shape, In x, In y) {
  return {CUBLAS_OP_T, CUBLAS_OP_N,       shape.out_features,
          shape.batch, shape.in_features, CUBLASLT_EPILOGUE_DEFAULT,
          false,       x.dtype,           y.dtype};
}

void product_and_bias(In x, In weight, In bias, Out y, Stream& stream) {
  const LinearShape shape = linear_shape(x, y);
  for (const InputView& other : {weight, bias, InputView(y)}) require_type(x.dtype, other);
  if (is_empty(shape)) {
    clear(y, stream);
  } else {
    CublasProduct product = forward_product(shape, x, y);
    if (!bias) return multiply(product, weight.data, x.data, y.data, stream);
    product.epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (multiply_with_epilogue(product, weight.data, x.data, {.vector = bias.data}, y.data, stream)) return;
    product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // narrow products have no fused form
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

namespace {

// Computes both gradients in one product, whose epilogue adds up the rows of y_grad. Returns false, and does nothing,
// if cuBLASLt has no algorithm for that.
bool gradients_in_one_product(CublasProduct product, In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  // The epilogue overwrites its vector, so a sum goes through scratch memory.
  std::optional<Scratch> memory;
  InputView fresh = bias_grad;
  if (bias_grad.accumulate) {
    memory.emplace(stream, static_cast<std::size_t>(bias_grad.count()) * sizeof(float));
    fresh.data = memory->as<void>();
  }
  product.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  if (!multiply_with_epilogue(product, x.data, y_grad.data, {.vector = fresh.data}, weight_grad.data, stream))
    return false;
  if (memory) convert(fresh, bias_grad, stream);
  return true;
}

}  // namespace

void linear_backward_weights(In x, In y_grad, Out weight_grad, Out bias_grad, Stream& stream) {
  const LinearShape shape = linear_shape(x, y_grad);
  require_type(x.dtype, y_grad);
  require_type(DType::kFloat32, weight_grad);
  require_type(DType::kFloat32, bias_grad);
  if (is_empty(shape)) {
    clear(weight_grad, stream);
  } else {
    const CublasProduct product{CUBLAS_OP_N,
                                CUBLAS_OP_T,
                                shape.in_features,
                                shape.out_features,
                                shape.batch,
                                CUBLASLT_EPILOGUE_DEFAULT,
                                weight_grad.accumulate,
                                x.dtype,
                                DType::kFloat32};
    if (bias_grad && gradients_in_one_product(product, x, y_grad, weight_grad, bias_grad, stream)) return;
    multiply(product, x.data, y_grad.data, weight_grad.floats(), stream);
  }
  if (bias_grad) bias_backward(y_grad, bias_grad, stream);
}

void use_linear(KernelTable& table) {
  table.linear = linear;
  table.linear_backward_data = linear_backward_data;
  table.linear_backward_weights = linear_backward_weights;
}

namespace {

// cuBLASLt has GELU by tanh in its epilogues; the matrix of GELU's arguments needs rows of whole vectors.
bool may_have_epilogue(const UnaryOperation& f, In x, Index features) {
  return f.function == UnaryFunction::kGeluTanh && x.dtype != DType::kFloat32 && features % 8 == 0;
}

void linear_unary(const UnaryOperation& f, In x, In weight, In bias, Out before, Out y, Stream& stream) {
  const LinearShape shape = linear_shape(x, y);
  for (const InputView& other : {weight, bias, InputView(before), InputView(y)}) require_type(x.dtype, other);
  if (!is_empty(shape) && may_have_epilogue(f, x, shape.out_features)) {
    CublasProduct product = forward_product(shape, x, y);
    product.epilogue = bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (multiply_with_epilogue(product, weight.data, x.data, {.vector = bias.data, .matrix = before.data}, y.data,
                               stream))
      return;
  }
  product_and_bias(x, weight, bias, before, stream);
  unary(f, before, y, stream);
}

void linear_unary_backward(const UnaryOperation& f, In y_grad, In weight, In before, Out before_grad, Stream& stream) {
  const LinearShape shape = linear_shape(before_grad, y_grad);
  for (const InputView& other : {weight, before, InputView(before_grad)}) require_type(y_grad.dtype, other);
  if (!is_empty(shape) && may_have_epilogue(f, y_grad, shape.in_features)) {
    const CublasProduct product{CUBLAS_OP_N, CUBLAS_OP_N,        shape.in_features,
                                shape.batch, shape.out_features, CUBLASLT_EPILOGUE_DGELU,
                                false,       y_grad.dtype,       before_grad.dtype};
    if (multiply_with_epilogue(product, weight.data, y_grad.data, {.matrix = before.data}, before_grad.data, stream))
      return;
  }
  linear_backward_data(y_grad, weight, before_grad, stream);
  unary_backward(f, before, before_grad, before_grad, stream);
}

}  // namespace

void use_linear_unary(KernelTable& table) {
  table.linear_unary = linear_unary;
  table.linear_unary_backward = linear_unary_backward;
}

}  // namespace lockstep::cuda
