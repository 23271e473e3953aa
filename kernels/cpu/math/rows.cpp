#include "kernels/cpu/math/rows.h"

#include <limits>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

// Uses four chains of vectors: in one chain, each maximum or sum would wait four cycles for the previous one, as long
// as a row of 64 takes otherwise.
LOCKSTEP_CPU_DISPATCH(float, row_maximum, (const float* x, Index count), (x, count), {
  const Index whole = count - count % kLanes;
  const Index fours = count - count % (4 * kLanes);
  Lanes a = Lanes{} - std::numeric_limits<float>::infinity();
  Lanes b = a;
  Lanes c = a;
  Lanes d = a;
  Lanes part;
  Index i = 0;
  for (; i < fours; i += 4 * kLanes) {
    load(x + i, part);
    a = part > a ? part : a;
    load(x + i + kLanes, part);
    b = part > b ? part : b;
    load(x + i + 2 * kLanes, part);
    c = part > c ? part : c;
    load(x + i + 3 * kLanes, part);
    d = part > d ? part : d;
  }
  for (; i < whole; i += kLanes) {
    load(x + i, part);
    a = part > a ? part : a;
  }
  a = b > a ? b : a;
  c = d > c ? d : c;
  a = c > a ? c : a;
  float largest = largest_of(a);
  for (; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
})

LOCKSTEP_CPU_DISPATCH(float, row_sum, (const float* x, Index count), (x, count), {
  const Index whole = count - count % kLanes;
  const Index fours = count - count % (4 * kLanes);
  Lanes a{};
  Lanes b{};
  Lanes c{};
  Lanes d{};
  Lanes part;
  Index i = 0;
  for (; i < fours; i += 4 * kLanes) {
    load(x + i, part);
    a += part;
    load(x + i + kLanes, part);
    b += part;
    load(x + i + 2 * kLanes, part);
    c += part;
    load(x + i + 3 * kLanes, part);
    d += part;
  }
  for (; i < whole; i += kLanes) {
    load(x + i, part);
    a += part;
  }
  a = (a + b) + (c + d);
  float sum = sum_of(a);
  for (; i < count; ++i) sum += x[i];
  return sum;
})

LOCKSTEP_CPU_DISPATCH(float, row_product, (const float* a, const float* b, Index count), (a, b, count), {
  const Index whole = count - count % kLanes;
  Lanes sums{};
  Lanes left, right;
  for (Index c = 0; c < whole; c += kLanes) {
    load(a + c, left);
    load(b + c, right);
    sums += left * right;
  }
  float sum = sum_of(sums);
  for (Index c = whole; c < count; ++c) sum += a[c] * b[c];
  return sum;
})

LOCKSTEP_CPU_DISPATCH(void, exponentials_loop, (const float* x, float shift, Index count, float* y),
                      (x, shift, count, y), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < count; ++c) y[c] = vector_math::exp(x[c] - shift);
                      })

LOCKSTEP_CPU_DISPATCH(void, exponentials_of_many_loop, (const float* x, float shift, Index count, float* y),
                      (x, shift, count, y),
                      {LOCKSTEP_CHUNKED_LOOP(c, count, (prefetch_chunk(x + c), prefetch_chunk<true>(y + c)),
                                             { y[c] = vector_math::exp(x[c] - shift); })})

float row_exponentials_of_many(const float* x, float shift, Index count, float* y) {
  exponentials_of_many_loop(x, shift, count, y);
  return row_sum(y, count);
}

float row_exponentials(const float* x, float shift, Index count, float* y) {
  exponentials_loop(x, shift, count, y);
  return row_sum(y, count);
}

LOCKSTEP_CPU_DISPATCH(void, scale_row, (float* x, float factor, Index count), (x, factor, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < count; ++c) x[c] *= factor;
})

}  // namespace lockstep::fast
