// Batches of matrix products: threads share the batch, or the one product of a batch of one.
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/math/any_float.h"
#include "kernels/cpu/products/product.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

namespace products {

namespace {

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream& stream) {
  const std::int64_t batch = c.shape[0], rows = c.shape[1], columns = c.shape[2], inner = a.shape[transpose_a ? 1 : 2];
  if (rows == 0 || columns == 0 || inner == 0)
    return reference_kernels().matmul(a, transpose_a, b, transpose_b, c, stream);
  const auto product = [&](std::int64_t n) {
    const float *const of_a = a.floats() + n * rows * inner, *const of_b = b.floats() + n * inner * columns;
    return Product{rows,
                   columns,
                   inner,
                   transpose_a ? transposed(of_a, rows) : as_stored(of_a, inner),
                   transpose_b ? transposed(of_b, inner) : as_stored(of_b, columns),
                   c.floats() + n * rows * columns,
                   columns,
                   c.accumulate};
  };
  if (batch == 1) return multiply(product(0));
  in_parallel(batch, [&](std::int64_t n) { multiply_alone(product(n)); });
}

}  // namespace

}  // namespace products

void use_matrix_products(KernelTable& table) { table.matmul = any_float<products::matmul>; }

}  // namespace lockstep
