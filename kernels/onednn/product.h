// Matrix products on plain row-major matrices, whose results do not depend on the number of threads.
#pragma once

#include <cstdint>

namespace lockstep::onednn {

// c (rows, columns) = a * b + (accumulate ? c : bias), all row-major; 'T' says that the operand lies transposed.
struct Product {
  char transpose_a, transpose_b;
  std::int64_t rows, columns, inner;
  const float* a;
  const float* b;
  bool accumulate;
  float* c;
  const float* bias = nullptr;  // of each column: added to the product, of one that does not accumulate
  bool relu = false;            // then clamped below at 0; NaN stays NaN
};

// Threads share its rows or columns.
void multiply(const Product& product);

// The distances of rows as they lie.
struct Strides {
  std::int64_t a, b, c;
};
// c = factor * a * b + (accumulate ? c : 0), on the calling thread; no size may be 0. Of products without bias and
// ReLU.
void multiply_alone(const Product& product, const Strides& strides, float factor = 1);

}  // namespace lockstep::onednn
