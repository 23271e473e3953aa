// Binary functions, comparisons and selection, with broadcasting. Dimensions that are contiguous in all operands are
// merged; vector loops run over the two innermost of the remaining ones. In the innermost one each operand advances by
// one element, or stays.
#include <algorithm>
#include <bit>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/vector_math.h"
#include "kernels/cpu/math/vector_power.h"
#include "kernels/strided_loop.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

namespace vm = vector_math;

// Results are stored row after row; an operand advances by a_row from row to row, and by a_step (0 or 1) within one.
struct Rows {
  Index rows, length, a_row, b_row, a_step, b_step;
};

LOCKSTEP_ALWAYS_INLINE void prefetch_rows(const float* a, const float* b, const float* out) {
  prefetch_chunk(a), prefetch_chunk(b), prefetch_chunk<true>(out);
}
LOCKSTEP_ALWAYS_INLINE void prefetch_rows(const float* a, const float* b, const std::uint8_t*) {
  prefetch_chunk(a), prefetch_chunk(b);
}

// `loop` is one of the loops of prefetch.h.
#define LOCKSTEP_BINARY_ROWS(loop, name, Result, value)                                                             \
  LOCKSTEP_CPU_DISPATCH(void, name, (const float* a, const float* b, Result* out, const Rows& r), (a, b, out, r), { \
    for (Index row = 0; row < r.rows; ++row, a += r.a_row, b += r.b_row, out += r.length) {                         \
      if (r.a_step == 1 && r.b_step == 1) {                                                                         \
        loop(i, r.length, prefetch_rows(a + i, b + i, out + i), {                                                   \
          const float x = a[i], y = b[i];                                                                           \
          out[i] = value;                                                                                           \
        })                                                                                                          \
      } else if (r.a_step == 1) {                                                                                   \
        const float y = *b;                                                                                         \
        LOCKSTEP_INDEPENDENT_ITERATIONS                                                                             \
        for (Index i = 0; i < r.length; ++i) {                                                                      \
          const float x = a[i];                                                                                     \
          out[i] = value;                                                                                           \
        }                                                                                                           \
      } else {                                                                                                      \
        const float x = *a;                                                                                         \
        LOCKSTEP_INDEPENDENT_ITERATIONS                                                                             \
        for (Index i = 0; i < r.length; ++i) {                                                                      \
          const float y = b[i * r.b_step];                                                                          \
          out[i] = value;                                                                                           \
        }                                                                                                           \
      }                                                                                                             \
    }                                                                                                               \
  })

LOCKSTEP_BINARY_ROWS(LOCKSTEP_PLAIN_LOOP, add_rows, float, x + y)
LOCKSTEP_BINARY_ROWS(LOCKSTEP_PLAIN_LOOP, sub_rows, float, x - y)
LOCKSTEP_BINARY_ROWS(LOCKSTEP_PLAIN_LOOP, mul_rows, float, x* y)
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, div_rows, float, x / y)

// Uses a mask, because compilers do not vectorise a branch.
LOCKSTEP_ALWAYS_INLINE float zero_where(bool is_zero, float value) {
  const std::uint32_t mask = is_zero ? 0U : ~0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & mask);
}

LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, any_power_rows, float, vm::power(x, y))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, any_base_slope_rows, float, zero_where(y == 0, y* vm::power(x, y - 1.0F)))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, any_exponent_slope_rows, float,
                     zero_where((x == 0) & (y >= 0), vm::power(x, y) * vm::log(x)))
// For normal positive bases and finite exponents: faster, with the same bits.
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, normal_power_rows, float, vm::power_of_normal(x, y))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, normal_base_slope_rows, float,
                     zero_where(y == 0, y* vm::power_of_normal(x, y - 1.0F)))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, normal_exponent_slope_rows, float, vm::power_of_normal(x, y) * vm::log(x))

// True if all bases are normal positive numbers and all exponents finite.
LOCKSTEP_CPU_DISPATCH(bool, are_normal,
                      (const float* bases, Index base_count, const float* exponents, Index exponent_count),
                      (bases, base_count, exponents, exponent_count), {
                        std::uint32_t last = 0, largest = 0;
                        for (Index i = 0; i < base_count; ++i) last = std::max(last, vm::place_among_normals(bases[i]));
                        for (Index i = 0; i < exponent_count; ++i)
                          largest = std::max(largest, std::bit_cast<std::uint32_t>(vm::abs(exponents[i])));
                        return last < vm::kNormals && largest < 0x7f800000U;
                      })

// Computes one tile at a time; most tiles contain no special values. The check has prefetched the tile into the cache
// before the second loop reads it.
template <auto normal_rows, auto any_rows> void power_rows(const float* a, const float* b, float* out, const Rows& r) {
  constexpr Index kShort = 64, kTile = kPrefetchAhead;
  if (r.length < kShort) return any_rows(a, b, out, r);
  for (Index row = 0; row < r.rows; ++row, a += r.a_row, b += r.b_row, out += r.length)
    for (Index i = 0; i < r.length; i += kTile) {
      const Index length = std::min(kTile, r.length - i);
      const float *const x = a + i * r.a_step, *const y = b + i * r.b_step;
      const bool is_normal = are_normal(x, r.a_step == 0 ? 1 : length, y, r.b_step == 0 ? 1 : length);
      (is_normal ? normal_rows : any_rows)(x, y, out + i, {1, length, 0, 0, r.a_step, r.b_step});
    }
}

LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, equal_rows, std::uint8_t, static_cast<std::uint8_t>(x == y ? 1 : 0))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, not_equal_rows, std::uint8_t, static_cast<std::uint8_t>(x != y ? 1 : 0))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, greater_rows, std::uint8_t, static_cast<std::uint8_t>(x > y ? 1 : 0))
LOCKSTEP_BINARY_ROWS(LOCKSTEP_CHUNKED_LOOP, greater_equal_rows, std::uint8_t, static_cast<std::uint8_t>(x >= y ? 1 : 0))

LOCKSTEP_CPU_DISPATCH(void, choose_row,
                      (const std::uint8_t* condition, const float* a, const float* b, float* out, Index length,
                       Index c_step, Index a_step, Index b_step),
                      (condition, a, b, out, length, c_step, a_step, b_step), {
                        if (c_step == 1 && a_step == 1 && b_step == 1) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index i = 0; i < length; ++i) {
                            const float x = a[i];
                            const float y = b[i];
                            out[i] = condition[i] != 0 ? x : y;
                          }
                          return;
                        }
                        for (Index i = 0; i < length; ++i)
                          out[i] = condition[i * c_step] != 0 ? a[i * a_step] : b[i * b_step];
                      })

template <typename Result> using RowsLoop = void (*)(const float*, const float*, Result*, const Rows&);

template <typename Result> void run_rows(RowsLoop<Result> run, In a, In b, Out out) {
  const StridedLoop<2> loop(out.shape, {broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)});
  const Rows rows{loop.extent(1),    loop.extent(0),    loop.stride(0, 1),
                  loop.stride(1, 1), loop.stride(0, 0), loop.stride(1, 0)};
  const float *const x = a.floats(), *const y = b.floats();
  auto* to = out.as<Result>();
  for_each_outer(loop, 2, [&](const auto& at) {
    run(x + at[0], y + at[1], to, rows);
    to += rows.rows * rows.length;
  });
}

void binary(BinaryFunction function, In a, In b, Out out, Stream&) {
  constexpr RowsLoop<float> kLoops[] = {add_rows,
                                        sub_rows,
                                        mul_rows,
                                        div_rows,
                                        power_rows<normal_power_rows, any_power_rows>,
                                        power_rows<normal_base_slope_rows, any_base_slope_rows>,
                                        power_rows<normal_exponent_slope_rows, any_exponent_slope_rows>};
  run_rows(kLoops[static_cast<int>(function)], a, b, out);
}

void compare(Comparison comparison, In a, In b, Out mask, Stream&) {
  constexpr RowsLoop<std::uint8_t> kLoops[] = {equal_rows, not_equal_rows, greater_rows, greater_equal_rows};
  run_rows(kLoops[static_cast<int>(comparison)], a, b, mask);
}

void where(In condition, In a, In b, Out out, Stream&) {
  const auto* const chosen = static_cast<const std::uint8_t*>(condition.data);
  const float *const x = a.floats(), *const y = b.floats();
  float* to = out.floats();
  const StridedLoop<3> loop(out.shape, {broadcast_strides(condition.shape, out.shape),
                                        broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape)});
  const Index length = loop.extent(0);
  for_each_outer(loop, 1, [&](const auto& at) {
    choose_row(chosen + at[0], x + at[1], y + at[2], to, length, loop.stride(0, 0), loop.stride(1, 0),
               loop.stride(2, 0));
    to += length;
  });
}

}  // namespace

void use_binary(KernelTable& table) {
  table.binary = any_float<binary>;
  table.compare = any_float<compare>;
  table.where = any_float<where>;
}

}  // namespace lockstep::fast
