#include "kernels/onednn/product.h"

#include "kernels/cpu/product_amx.h"
#include "kernels/onednn/onednn.h"
#include "lockstep/core/error.h"

namespace lockstep::onednn {

namespace {

using Index = std::int64_t;

constexpr Index kBlock = 16;  // rows or columns; parts are multiples of it
// The minimum size of a part, because oneDNN copies the operand that all parts share once per part. Parts of columns
// lose more by that than parts of rows, and are used for products with few rows.
constexpr Index kFewestRows = 192, kFewestColumns = 256;

ProductStrides strides_of(const BlasProduct& p) {
  return {p.transpose_a == 'T' ? p.rows : p.inner, p.transpose_b == 'T' ? p.inner : p.columns, p.columns};
}

amx::AmxProduct on_tiles(const BlasProduct& p, const ProductStrides& strides) {
  const auto operand = [](char transposed, const float* data, Index step) {
    return transposed == 'T' ? amx::Operand{data, 1, step} : amx::Operand{data, step, 1};
  };
  return {p.rows,
          p.columns,
          p.inner,
          operand(p.transpose_a, p.a, strides.a),
          operand(p.transpose_b, p.b, strides.b),
          p.c,
          strides.c,
          p.accumulate,
          p.bias,
          p.relu};
}

// Rows [row, row + rows), columns [column, column + columns).
void multiply_part(const BlasProduct& p, Index row, Index rows, Index column, Index columns) {
  const bool flipped_a = p.transpose_a == 'T', flipped_b = p.transpose_b == 'T';
  const float* const a = p.a + (flipped_a ? row : row * p.inner);
  const float* const b = p.b + (flipped_b ? column * p.inner : column);
  multiply_alone(
      {p.transpose_a, p.transpose_b, rows, columns, p.inner, a, b, p.accumulate, p.c + row * p.columns + column},
      strides_of(p));
}

}  // namespace

// Runs in one thread, because oneDNN splits long sums among several.
void multiply_alone(const BlasProduct& p, const ProductStrides& strides, float factor) {
  if (factor == 1 && amx::suits(p.rows, p.columns, p.inner)) return amx::multiply_alone(on_tiles(p, strides));
  const Threads one(1);
  const auto status = dnnl::sgemm(p.transpose_a, p.transpose_b, p.rows, p.columns, p.inner, factor, p.a, strides.a, p.b,
                                  strides.b, p.accumulate ? 1 : 0, p.c, strides.c);
  LOCKSTEP_CHECK(status == dnnl::status::success, "oneDNN sgemm of {} x {} x {}: status {}", p.rows, p.columns, p.inner,
                 static_cast<int>(status));
}

void multiply(const BlasProduct& p) {
  if (amx::suits(p.rows, p.columns, p.inner)) return amx::multiply(on_tiles(p, strides_of(p)));
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
  const KernelTable& kernels = cpu_device().kernels();
  const Shape shape = {p.rows, p.columns};
  Stream& stream = cpu_device().default_stream();
  if (p.bias != nullptr) kernels.bias({p.c, shape}, {p.bias, {p.columns}}, stream);
  if (p.relu) kernels.relu({p.c, shape}, {p.c, shape}, stream);
}

}  // namespace lockstep::onednn
