#include "kernels/cpu/rows.h"

#include <limits>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector_math.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

LOCKSTEP_CPU_DISPATCH(float, row_maximum, (const float* x, Index count), (x, count), {
  const Index whole = count - count % kLanes;
  Lanes lanes = Lanes{} - std::numeric_limits<float>::infinity();
  Lanes part;
  for (Index c = 0; c < whole; c += kLanes) {
    load(x + c, part);
    lanes = part > lanes ? part : lanes;
  }
  float largest = lanes[0];
  for (Index lane = 1; lane < kLanes; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  for (Index c = whole; c < count; ++c) largest = x[c] > largest ? x[c] : largest;
  return largest;
})

LOCKSTEP_CPU_DISPATCH(float, row_sum, (const float* x, Index count), (x, count), {
  const Index whole = count - count % kLanes;
  Lanes sums{};
  Lanes part;
  for (Index c = 0; c < whole; c += kLanes) {
    load(x + c, part);
    sums += part;
  }
  float sum = sum_of(sums);
  for (Index c = whole; c < count; ++c) sum += x[c];
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

LOCKSTEP_CPU_DISPATCH(void, exponentials_loop, (const float* x, float shift, Index count, float* y), (x, shift, count, y), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < count; ++c) y[c] = vector_math::exp(x[c] - shift);
})

float row_exponentials(const float* x, float shift, Index count, float* y) {
  exponentials_loop(x, shift, count, y);
  return row_sum(y, count);
}

LOCKSTEP_CPU_DISPATCH(void, scale_row, (float* x, float factor, Index count), (x, factor, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < count; ++c) x[c] *= factor;
})

}  // namespace lockstep::fast
