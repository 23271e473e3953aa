#include "kernels/onednn/product.h"

#include "kernels/onednn/onednn.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

using Index = std::int64_t;

constexpr Index kBlock = 16;  // rows or columns; parts are whole numbers of them
// A part of fewer: oneDNN copies the operand that all parts share once for each of them. Parts of columns lose more by that than parts of
// rows, and are for products of few rows.
constexpr Index kFewestRows = 192, kFewestColumns = 256;

// Rows [row, row + rows), columns [column, column + columns).
void multiply_part(const Product& p, Index row, Index rows, Index column, Index columns) {
  const bool flipped_a = p.transpose_a == 'T', flipped_b = p.transpose_b == 'T';
  const Strides strides{flipped_a ? p.rows : p.inner, flipped_b ? p.inner : p.columns, p.columns};
  const float* const a = p.a + (flipped_a ? row : row * p.inner);
  const float* const b = p.b + (flipped_b ? column * p.inner : column);
  multiply_alone({p.transpose_a, p.transpose_b, rows, columns, p.inner, a, b, p.accumulate, p.c + row * p.columns + column}, strides);
}

}  // namespace

// In one thread: oneDNN splits long sums among several.
void multiply_alone(const Product& p, const Strides& strides, float factor) {
  const Threads one(1);
  const auto status = dnnl::sgemm(p.transpose_a, p.transpose_b, p.rows, p.columns, p.inner, factor, p.a, strides.a, p.b, strides.b,
                                  p.accumulate ? 1 : 0, p.c, strides.c);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", p.rows, p.columns, p.inner,
                 static_cast<int>(status));
}

void multiply(const Product& p) {
  const Index most_by_rows = p.rows / kFewestRows, most_by_columns = p.columns / kFewestColumns;
  const bool by_rows = 5 * most_by_rows >= most_by_columns;
  const Index length = by_rows ? p.rows : p.columns, blocks = (length + kBlock - 1) / kBlock;
  const Index parts = parts_of(p.rows * p.columns * p.inner, by_rows ? most_by_rows : most_by_columns);
  in_parallel(parts, [&](Index part) {
    const Index begin = blocks * part / parts * kBlock, end = std::min(length, blocks * (part + 1) / parts * kBlock);
    if (by_rows)
      multiply_part(p, begin, end - begin, 0, p.columns);
    else
      multiply_part(p, 0, p.rows, begin, end - begin);
  });
}

}  // namespace lockstep::onednn
