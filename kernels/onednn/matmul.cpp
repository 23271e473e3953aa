// Batches of matrix products: threads share the batch, or the one product of a batch of one.
#include "kernels/cpu/any_float.h"
#include "kernels/cpu/batch_linear.h"
#include "kernels/onednn/onednn_kernels.h"
#include "kernels/onednn/product.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::onednn {

namespace {

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream& stream) {
  const std::int64_t batch = c.shape[0], rows = c.shape[1], columns = c.shape[2], inner = a.shape[transpose_a ? 1 : 2];
  if (rows == 0 || columns == 0 || inner == 0)
    return reference_kernels().matmul(a, transpose_a, b, transpose_b, c, stream);
  const auto product = [&](std::int64_t n) {
    return BlasProduct{transpose_a ? 'T' : 'N',
                       transpose_b ? 'T' : 'N',
                       rows,
                       columns,
                       inner,
                       a.floats() + n * rows * inner,
                       b.floats() + n * inner * columns,
                       c.accumulate,
                       c.floats() + n * rows * columns};
  };
  // A product with a transposed second operand is a linear layer without bias.
  const LinearShape layer{rows, inner, columns};
  if (!transpose_a && transpose_b && !c.accumulate && batch_linear::suits(layer))
    return in_parallel(batch, [&](std::int64_t n) {
      const BlasProduct p = product(n);
      batch_linear::linear(layer, p.a, p.b, nullptr, false, p.c);
    });
  if (batch == 1) return multiply(product(0));
  const ProductStrides strides{transpose_a ? rows : inner, transpose_b ? inner : columns, columns};
  in_parallel(batch, [&](std::int64_t n) { multiply_alone(product(n), strides); });
}

}  // namespace

void use_matmul(KernelTable& table) { table.matmul = any_float<matmul>; }

}  // namespace lockstep::onednn
