// Reductions, and the softmax of rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/rows.h"
#include "kernels/cpu/math/vector_math.h"
#include "kernels/reduction_plan.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

// -- sums over any dimensions, step by step (kernels/reduction_plan.h), and maxima with their positions

namespace {

using EightDoubles = double __attribute__((vector_size(64)));

LOCKSTEP_ALWAYS_INLINE void add_lanes(const Lanes& lanes, EightDoubles& low, EightDoubles& high) {
  float __attribute__((vector_size(32))) half;
  std::memcpy(&half, &lanes, sizeof half);
  low += __builtin_convertvector(half, EightDoubles);
  std::memcpy(&half, reinterpret_cast<const float*>(&lanes) + 8, sizeof half);
  high += __builtin_convertvector(half, EightDoubles);
}

// The sum of each row. Four floats at a time are summed in float32, which costs two roundings, and further sums are in
// double, because converting every float would take longer than reading it. There are sixteen partial sums, added at
// the end in a fixed order: the same bits from every build.
LOCKSTEP_CPU_DISPATCH(void, row_sums_loop, (const float* x, float* sums, Index rows, Index n), (x, sums, rows, n), {
  for (Index row = 0; row < rows; ++row, x += n) {
    EightDoubles low{};
    EightDoubles high{};
    Lanes first, second, third, fourth;
    Index i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      load(x + i, first);
      load(x + i + kLanes, second);
      load(x + i + 2 * kLanes, third);
      load(x + i + 3 * kLanes, fourth);
      first = (first + second) + (third + fourth);
      add_lanes(first, low, high);
    }
    for (; i + kLanes <= n; i += kLanes) {
      load(x + i, first);
      add_lanes(first, low, high);
    }
    low += high;
    double total = ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
    for (; i < n; ++i) total += static_cast<double>(x[i]);
    sums[row] = static_cast<float>(total);
  }
})

LOCKSTEP_CPU_DISPATCH(void, factor_loop, (const float* in, float factor, float* out, Index count, bool accumulate),
                      (in, factor, out, count, accumulate), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < count; ++i) out[i] += in[i] * factor;
                          return;
                        }
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) out[i] = in[i] * factor;
                      })

// Column sums for few columns: sums of rows of `together` original rows each, whose parts are added at the end.
void sum_narrow_columns(const float* x, Index rows, Index columns, float* sums) {
  constexpr Index kWidth = 64;
  const Index together = (kWidth + columns - 1) / columns, wide_rows = rows / together, width = together * columns;
  float wide[2 * kWidth] = {};
  add_column_sums(x, wide_rows, width, wide);
  std::fill_n(sums, columns, 0.0F);
  add_column_sums(wide, together, columns, sums);
  add_column_sums(x + wide_rows * width, rows - wide_rows * together, columns, sums);
}

void sum_columns(const float* x, Index rows, Index columns, float* sums) {
  constexpr Index kNarrow = 32, kManyRows = 256;
  if (columns <= kNarrow && rows >= kManyRows) return sum_narrow_columns(x, rows, columns, sums);
  std::fill_n(sums, columns, 0.0F);
  add_column_sums(x, rows, columns, sums);
}

// sums (outer, inner) of x (outer, n, inner)
void sum_middle(const float* x, const ReductionStep& step, float* sums) {
  if (step.inner == 1) return row_sums_loop(x, sums, step.outer, step.n);
  for (Index o = 0; o < step.outer; ++o)
    sum_columns(x + o * step.n * step.inner, step.n, step.inner, sums + o * step.inner);
}

Buffer floats_of(Index count) { return cpu_device().allocate(static_cast<std::size_t>(count) * sizeof(float)); }

void sum(In x, float factor, Out y, Stream&) {
  if (y.count() == 0) return;
  const float* from = x.floats();
  Buffer before, now;
  for (const ReductionStep& step : reduction_steps(x.shape, y.shape)) {
    now = floats_of(step.outer * step.inner);
    sum_middle(from, step, reinterpret_cast<float*>(now.data()));
    from = reinterpret_cast<const float*>(now.data());
    std::swap(before, now);
  }
  factor_loop(from, factor, y.floats(), y.count(), y.accumulate);
}

// The maximum of a row; NaN if there is one. Four independent chains, because each step waits for the previous one in
// its chain.
LOCKSTEP_CPU_DISPATCH(float, largest_of_row, (const float* x, Index n), (x, n), {
  constexpr int kChains = 4;
  Lanes best[kChains];
  for (int chain = 0; chain < kChains; ++chain) best[chain] = Lanes{} + x[0];
  Lanes part;
  Index i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    prefetch_chunk(x + i);
    for (int chain = 0; chain < kChains; ++chain) {
      load(x + i + chain * kLanes, part);
      best[chain] = ((part <= best[chain]) | (best[chain] != best[chain])) ? best[chain] : part;
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    load(x + i, part);
    best[0] = ((part <= best[0]) | (best[0] != best[0])) ? best[0] : part;
  }
  for (int half = kChains / 2; half > 0; half /= 2)
    for (int chain = 0; chain < half; ++chain) {
      part = best[chain + half];
      best[chain] = ((part <= best[chain]) | (best[chain] != best[chain])) ? best[chain] : part;
    }
  float lanes[kLanes];
  save(best[0], lanes);
  for (Index half = kLanes / 2; half > 0; half /= 2)
    for (Index lane = 0; lane < half; ++lane) {
      const float next = lanes[lane + half];
      lanes[lane] = ((next <= lanes[lane]) | (lanes[lane] != lanes[lane])) ? lanes[lane] : next;
    }
  for (; i < n; ++i) lanes[0] = ((x[i] <= lanes[0]) | (lanes[0] != lanes[0])) ? lanes[0] : x[i];
  return lanes[0];
})

// The first position of `value` in a row.
LOCKSTEP_CPU_DISPATCH(Index, first_place_of, (const float* x, Index n, float value), (x, n, value), {
  constexpr Index kBlock = 4 * kLanes;
  const bool is_nan = value != value;
  Lanes part;
  Index i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    std::int32_t __attribute__((vector_size(64))) found = {};
    for (Index j = 0; j < kBlock; j += kLanes) {
      load(x + i + j, part);
      found |= is_nan ? part != part : part == value;
    }
    std::uint64_t words[8];
    __builtin_memcpy(words, &found, sizeof words);
    if ((words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]) != 0) break;
  }
  for (; i < n; ++i)
    if (x[i] == value || (x[i] != x[i] && is_nan)) return i;
  return 0;
})

// The maximum of each column.
LOCKSTEP_CPU_DISPATCH(void, largest_of_columns, (const float* x, Index n, Index columns, float* values, Index* places),
                      (x, n, columns, values, places), {
                        for (Index c = 0; c < columns; ++c) {
                          values[c] = x[c];
                          places[c] = 0;
                        }
                        for (Index i = 1; i < n; ++i) {
                          const float* const row = x + i * columns;
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < columns; ++c) {
                            const float best = values[c];
                            const float next = row[c];
                            const bool stays = (next <= best) | (best != best);
                            values[c] = stays ? best : next;
                            places[c] = stays ? places[c] : i;
                          }
                        }
                      })

void max(In x, Out values, Out indices, Stream&) {
  const Index outer = x.shape[0], n = x.shape[1], inner = x.shape[2];
  float* const value = values.floats();
  auto* const place = indices.as<std::int64_t>();
  for (Index o = 0; o < outer; ++o) {
    const float* const line = x.floats() + o * n * inner;
    if (inner != 1) {
      largest_of_columns(line, n, inner, value + o * inner, place + o * inner);
      continue;
    }
    const float largest = largest_of_row(line, n);
    place[o] = first_place_of(line, n, largest);
    value[o] = line[place[o]];
  }
}

}  // namespace

void use_reduction(KernelTable& table) {
  table.sum = any_float<sum>;
  table.max = any_float<max>;
}

// -- softmax: each row is read from memory once; further passes find it in the first-level cache

namespace {

// Subtracts twice, because largest + log_sum would be rounded to the precision of `largest`.
LOCKSTEP_CPU_DISPATCH(void, shift_row, (const float* x, float largest, float log_sum, Index count, float* y),
                      (x, largest, log_sum, count, y), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < count; ++c) y[c] = (x[c] - largest) - log_sum;
                      })

LOCKSTEP_CPU_DISPATCH(void, softmax_gradient,
                      (const float* y, const float* y_grad, float sum, Index count, bool accumulate, float* x_grad),
                      (y, y_grad, sum, count, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] += y[c] * (y_grad[c] - sum);
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] = y[c] * (y_grad[c] - sum);
                        }
                      })

LOCKSTEP_CPU_DISPATCH(void, log_softmax_gradient,
                      (const float* y, const float* y_grad, float sum, Index count, bool accumulate, float* x_grad),
                      (y, y_grad, sum, count, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] += y_grad[c] - vector_math::exp(y[c]) * sum;
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < count; ++c) x_grad[c] = y_grad[c] - vector_math::exp(y[c]) * sum;
                        }
                      })

void softmax(In in, bool log, Out out, Stream&) {
  const Index rows = in.shape[0], channels = in.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float* const x = in.floats() + n * channels;
    float* const y = out.floats() + n * channels;
    const float largest = row_maximum(x, channels), sum = row_exponentials_of_many(x, largest, channels, y);
    if (log)
      shift_row(x, largest, std::log(sum), channels, y);
    else
      scale_row(y, 1 / sum, channels);
  }
}

void softmax_backward(In out, In out_grad, bool log, Out x_grad, Stream&) {
  const Index rows = out.shape[0], channels = out.shape[1];
  for (Index n = 0; n < rows && channels > 0; ++n) {
    const float *const y = out.floats() + n * channels, *const grad = out_grad.floats() + n * channels;
    float* const to = x_grad.floats() + n * channels;
    if (log)
      log_softmax_gradient(y, grad, row_sum(grad, channels), channels, x_grad.accumulate, to);
    else
      softmax_gradient(y, grad, row_product(y, grad, channels), channels, x_grad.accumulate, to);
  }
}

}  // namespace

void use_softmax(KernelTable& table) {
  table.softmax = any_float<softmax>;
  table.softmax_backward = any_float<softmax_backward>;
}

}  // namespace lockstep::fast
