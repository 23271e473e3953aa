// Matrix products on the CPU. product.cpp chooses who computes one: loops for few rows, AMX, our own packed tiles, or
// oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/core/view.h"

namespace lockstep {

// The elements of a matrix: element (row, column) at row * row_step + column * column_step. One of the steps is 1.
struct MatrixOperand {
  const void* data;
  std::int64_t row_step, column_step;
  DType type = DType::kFloat32;  // or a 16-bit float

  const float* floats() const { return static_cast<const float*>(data); }
  MatrixOperand from(std::int64_t row, std::int64_t column) const {
    const auto bytes = (row * row_step + column * column_step) * static_cast<std::int64_t>(size_of(type));
    return {static_cast<const std::byte*>(data) + bytes, row_step, column_step, type};
  }
  MatrixOperand turned() const { return {data, column_step, row_step, type}; }
};

// A row-major matrix with rows of `step` elements, as it is or transposed.
inline MatrixOperand as_stored(const float* data, std::int64_t step) { return {data, step, 1}; }
inline MatrixOperand transposed(const float* data, std::int64_t step) { return as_stored(data, step).turned(); }
inline MatrixOperand as_stored(In view, std::int64_t step) { return {view.data, step, 1, view.dtype}; }
inline MatrixOperand transposed(In view, std::int64_t step) { return as_stored(view, step).turned(); }

// c (rows, columns) = a (rows, inner) * b (inner, columns) + (accumulate ? c : bias), then clamped below at 0 if `relu`
// (NaN stays NaN). a and b have the same type. c's rows are c_step apart, and their elements contiguous.
struct Product {
  std::int64_t rows, columns, inner;  // at least 1 each
  MatrixOperand a, b;
  float* c = nullptr;
  std::int64_t c_step = 0;
  bool accumulate = false;
  const float* bias = nullptr;  // one float per column; null: 0. Only if not accumulating
  bool relu = false;
};

// Threads share the rows or the columns. Results do not depend on the number of threads.
void multiply(const Product& product);
// On the calling thread.
void multiply_alone(const Product& product);

// The same with the result in a view, whose rows are contiguous and which may have 16-bit floats: they are sums of
// floats, rounded once. `product` has neither `c` nor `accumulate`.
void multiply_into(Out c, Product product);
void multiply_alone_into(Out c, Product product);

}  // namespace lockstep
