// Matrix products of floats on AMX, whose tiles multiply bfloat16 numbers sixteen times as fast as AVX-512 multiplies
// floats. A float is exactly the sum of three bfloat16 numbers, x = x1 + x2 + x3: they have 8 bits each, and a float
// has 24. Of the nine products of two floats' parts, the six large ones are summed in float; the three others are below
// half a unit in the last place (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial Intelligence
// Datatype For Higher-Precision Computations"). Errors are not larger than those of a float product unless terms are
// tiny (tests/kernels/cpu/product_amx_test.cpp).
//
// Results depend on the sizes, not on the number of threads. If an operand is NaN, infinite or above 3.39e38, the
// results that depend on it are NaN, and sums beyond a float's range are infinite or NaN. Parts of operands and
// products of parts below 1.2e-38 count as 0: operands below 2e-31 lose precision, and so do results whose terms are
// below 1e-30 (below 1e-37 they lose all of it).
#pragma once

#include "kernels/cpu/products/product.h"

namespace lockstep::amx {

using Index = std::int64_t;

// True on a CPU with AMX (Isa::kAmx) for products that are large enough for the cost of splitting their operands.
bool suits(Index rows, Index columns, Index inner);

// Both require AMX (call suits() or cpu_isa() first, which also requests AMX from the system); all sizes are at least
// 1. multiply_alone runs on the calling thread.
void multiply_alone(const Product& product);
// The same for a part of a product, for which the complete product decides which side is streamed, because that decides
// how sums are cut.
bool streams_rows(const Product& product);
void multiply_part(const Product& part, bool streams_rows);
// Threads share the work: they divide the longer side.
void multiply(const Product& product);

}  // namespace lockstep::amx
