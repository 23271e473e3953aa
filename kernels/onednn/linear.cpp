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
struct Product {
  char transpose_a, transpose_b;
  Index rows, columns, inner;
  const float* a;
  const float* b;
  bool accumulate;
  float* c;
};

constexpr Index kBlock = 16;      // rows or columns; parts are whole numbers of them
constexpr Index kShortest = 256;  // a part of fewer: oneDNN copies the operand that all parts share once for each of them

// Rows [row, row + rows), columns [column, column + columns). In one thread: oneDNN splits long sums among several.
void multiply_part(const Product& p, Index row, Index rows, Index column, Index columns) {
  const Threads one(1);
  const bool flipped_a = p.transpose_a == 'T', flipped_b = p.transpose_b == 'T';
  const Index stride_a = flipped_a ? p.rows : p.inner, stride_b = flipped_b ? p.inner : p.columns;
  const float* const a = p.a + (flipped_a ? row : row * p.inner);
  const float* const b = p.b + (flipped_b ? column * p.inner : column);
  const auto status = dnnl::sgemm(p.transpose_a, p.transpose_b, rows, columns, p.inner, 1, a, stride_a, b, stride_b, p.accumulate ? 1 : 0,
                                  p.c + row * p.columns + column, p.columns);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", rows, columns, p.inner,
                 static_cast<int>(status));
}

void multiply(const Product& p) {
  const bool by_rows = p.rows > p.columns;
  const Index length = by_rows ? p.rows : p.columns, blocks = (length + kBlock - 1) / kBlock;
  const Index parts = parts_of(p.rows * p.columns * p.inner, length / kShortest);
  in_parallel(parts, [&](Index part) {
    const Index begin = blocks * part / parts * kBlock, end = std::min(length, blocks * (part + 1) / parts * kBlock);
    if (by_rows)
      multiply_part(p, begin, end - begin, 0, p.columns);
    else
      multiply_part(p, 0, p.rows, begin, end - begin);
  });
}

bool empty(const LinearShape& s) { return s.batch == 0 || s.in_features == 0 || s.out_features == 0; }

}  // namespace

void linear(const LinearShape& shape, const float* x, const float* weight, const float* bias, bool relu, float* y, Stream& stream) {
  if (empty(shape)) return reference_kernels().linear(shape, x, weight, bias, relu, y, stream);
  if (batch_linear::suits(shape)) return batch_linear::linear(shape, x, weight, bias, relu, y);
  multiply({'N', 'T', shape.batch, shape.out_features, shape.in_features, x, weight, false, y});
  const KernelTable& kernels = cpu_device().kernels();
  if (bias != nullptr) kernels.bias(y, bias, shape.batch, shape.out_features, stream);
  if (relu) kernels.relu(y, y, shape.batch * shape.out_features, stream);
}

void linear_backward_data(const LinearShape& shape, const float* y_grad, const float* weight, float* x_grad, bool accumulate,
                          Stream& stream) {
  if (empty(shape)) return reference_kernels().linear_backward_data(shape, y_grad, weight, x_grad, accumulate, stream);
  multiply({'N', 'N', shape.batch, shape.in_features, shape.out_features, y_grad, weight, accumulate, x_grad});
}

void linear_backward_weights(const LinearShape& shape, const float* x, const float* y_grad, float* weight_grad, float* bias_grad,
                             bool accumulate_weight, bool accumulate_bias, Stream& stream) {
  if (empty(shape))
    return reference_kernels().linear_backward_weights(shape, x, y_grad, weight_grad, bias_grad, accumulate_weight, accumulate_bias,
                                                       stream);
  multiply({'T', 'N', shape.out_features, shape.in_features, shape.batch, y_grad, x, accumulate_weight, weight_grad});
  if (bias_grad != nullptr)
    cpu_device().kernels().bias_backward(y_grad, bias_grad, shape.batch, shape.out_features, accumulate_bias, stream);
}

}  // namespace lockstep::onednn
