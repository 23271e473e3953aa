// Matrix products on plain row-major matrices, whose results do not depend on the number of threads.
#pragma once

#include <cstdint>

namespace lockstep::onednn {

// c (rows, columns) = a * b + (accumulate ? c : bias), all row-major; 'T' means that the operand is stored transposed.
struct BlasProduct {
  char transpose_a, transpose_b;
  std::int64_t rows, columns, inner;
  const float* a;
  const float* b;
  bool accumulate;
  float* c;
  const float* bias = nullptr;  // per column, added to the product; only if not accumulating
  bool relu = false;            // clamps the result below at 0; NaN stays NaN
};

// Threads share the rows or columns.
void multiply(const BlasProduct& product);

// The distances between stored rows.
struct ProductStrides {
  std::int64_t a, b, c;
};
// c = factor * a * b + (accumulate ? c : 0), on the calling thread; all sizes are at least 1. Without bias and ReLU.
void multiply_alone(const BlasProduct& product, const ProductStrides& strides, float factor = 1);

}  // namespace lockstep::onednn
