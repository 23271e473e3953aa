// Loops over a row of floats that several operators share.
#pragma once

#include <cstdint>

namespace lockstep::fast {

float row_maximum(const float* x, std::int64_t count);  // -infinity for an empty row; with NaN any of its values
float row_sum(const float* x, std::int64_t count);
float row_product(const float* a, const float* b, std::int64_t count);  // sum of a * b
// y = exp(x - shift), also in place; returns their sum.
float row_exponentials(const float* x, float shift, std::int64_t count, float* y);
// The same for one of many contiguous rows: prefetches the next ones.
float row_exponentials_of_many(const float* x, float shift, std::int64_t count, float* y);
void scale_row(float* x, float factor, std::int64_t count);

}  // namespace lockstep::fast
