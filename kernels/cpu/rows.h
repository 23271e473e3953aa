// Loops over a row of floats that several operators are made of.
#pragma once

#include <cstdint>

namespace lockstep::fast {

float row_maximum(const float* x, std::int64_t count);  // -infinity of nothing; which one with NaN is open
float row_sum(const float* x, std::int64_t count);
float row_product(const float* a, const float* b, std::int64_t count);  // sum of a * b
float row_exponentials(const float* x, float shift, std::int64_t count,
                       float* y);  // y = exp(x - shift), also in place; gives their sum
// The same of one of many rows that follow each other in memory: asks for the next ones.
float row_exponentials_of_many(const float* x, float shift, std::int64_t count, float* y);
void scale_row(float* x, float factor, std::int64_t count);

}  // namespace lockstep::fast
