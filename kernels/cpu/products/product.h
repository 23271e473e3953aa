// Matrix products on the CPU. product.cpp chooses who computes one: AMX, our own packed tiles, or oneDNN.
#pragma once

#include <cstdint>

namespace lockstep {

// The elements of a matrix: element (row, column) at row * row_step + column * column_step. One of the steps is 1.
struct MatrixOperand {
  const float* data;
  std::int64_t row_step, column_step;
};

// A row-major matrix with rows of `step` floats, as it is or transposed.
inline MatrixOperand as_stored(const float* data, std::int64_t step) { return {data, step, 1}; }
inline MatrixOperand transposed(const float* data, std::int64_t step) { return {data, 1, step}; }

// c (rows, columns) = a (rows, inner) * b (inner, columns) + (accumulate ? c : bias), then clamped below at 0 if `relu`
// (NaN stays NaN). c's rows are c_step apart, and their elements contiguous.
struct Product {
  std::int64_t rows, columns, inner;  // at least 1 each
  MatrixOperand a, b;
  float* c;
  std::int64_t c_step;
  bool accumulate = false;
  const float* bias = nullptr;  // one float per column; null: 0. Only if not accumulating
  bool relu = false;
};

// Threads share the rows or the columns. Results do not depend on the number of threads.
void multiply(const Product& product);
// On the calling thread.
void multiply_alone(const Product& product);

}  // namespace lockstep
