// Batches of matrix products: threads share the batch, or the one product of a batch of one.
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/products/product.h"
#include "src/core/process/compute_threads.h"

namespace lockstep {

namespace products {

namespace {

void matmul(In a, bool transpose_a, In b, bool transpose_b, Out c, Stream& stream) {
  const std::int64_t batch = c.shape[0], rows = c.shape[1], columns = c.shape[2], inner = a.shape[transpose_a ? 1 : 2];
  if (rows == 0 || columns == 0 || inner == 0)
    return reference_kernels().matmul(a, transpose_a, b, transpose_b, c, stream);
  const Product product = {.rows = rows,
                           .columns = columns,
                           .inner = inner,
                           .a = transpose_a ? transposed(a, rows) : as_stored(a, inner),
                           .b = transpose_b ? transposed(b, inner) : as_stored(b, columns)};
  if (batch == 1) return multiply_into(c, product);
  in_parallel(batch, [&](std::int64_t n) {
    Product one = product;
    // A batch is a matrix whose rows are its matrices.
    one.a.data = as_stored(a, rows * inner).from(n, 0).data, one.b.data = as_stored(b, inner * columns).from(n, 0).data;
    OutputView result = c;
    result.data = const_cast<void*>(as_stored(c, rows * columns).from(n, 0).data);
    multiply_alone_into(result, one);
  });
}

}  // namespace

}  // namespace products

void use_matrix_products(KernelTable& table) { table.matmul = products::matmul; }

}  // namespace lockstep
