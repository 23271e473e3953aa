// Matrix products of floats on AMX, whose tiles multiply bfloat16 numbers sixteen times as fast as AVX-512 multiplies
// floats. A float is the sum of three bfloat16 numbers, x = x1 + x2 + x3, exactly: they have 8 bits each, and a float
// has 24. Of the nine products of two floats' parts the six large ones are added up in float; the three others are
// below half a unit in the last place (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence
// Datatype For Higher-Precision Computations"). Errors are not larger than those of a product on floats, where terms
// are not tiny (tests/kernels/cpu/product_amx_test.cpp).
//
// Results depend on the sizes, not on the number of threads. Where an operand is NaN, infinite or above 3.39e38, the
// results that it goes into are NaN, and sums beyond a float's range are infinite or NaN. Parts of operands and
// products of parts below 1.2e-38 count as 0: operands below 2e-31 lose digits, and so do results whose terms are below
// 1e-30 (all of them below 1e-37).
#pragma once

#include <cstdint>

namespace lockstep::amx {

using Index = std::int64_t;

// The elements of a matrix: element (row, column) at row * row_step + column * column_step. One of the steps is 1.
struct Operand {
  const float* data;
  Index row_step, column_step;
};

// c (rows, columns) = a * b + (accumulate ? c : 0) + start, then clamped below at 0 if `relu`. c's rows are c_step
// apart and contiguous; `start`, of which each row gets the same, has as many floats as there are columns; null: 0.
struct Product {
  Index rows, columns, inner;
  Operand a, b;
  float* c;
  Index c_step;
  bool accumulate = false;
  const float* start = nullptr;
  bool relu = false;
};

// On a CPU with AMX (Isa::kAmx): products large enough that cutting their operands into parts pays.
bool suits(Index rows, Index columns, Index inner);

// Both need a CPU with AMX (ask suits() or cpu_isa() first: it asks the system for AMX); no size may be 0. On the
// calling thread:
void multiply_alone(const Product& product);
// Shared among threads, which cut the longer side.
void multiply(const Product& product);

}  // namespace lockstep::amx
