// Local response normalisation. A block of rows goes through short passes that stay in the first-level cache: terms in
// rows padded by at least `radius` zeros, window sums over the entire block as one long vector, the scale, the result.
// Beta 0.75 and 0.5 need only products (vector_inverse_root.h), except if a scale in the block is not a normal number:
// then roots and a division. Any other beta uses powf.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/loops/fast.h"
#include "kernels/cpu/math/lanes.h"
#include "kernels/cpu/math/prefetch.h"
#include "kernels/cpu/math/vector_inverse_root.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

namespace vm = vector_math;

// to[k] = a[k] + b[k]; `to` may be a.
LOCKSTEP_CPU_DISPATCH(void, add_terms, (const float* a, const float* b, float* to, Index count), (a, b, to, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index k = 0; k < count; ++k) to[k] = a[k] + b[k];
})

// to[k] = a[k] + (b[k] + c[k]); `to` may be a.
LOCKSTEP_CPU_DISPATCH(void, add_pairs, (const float* a, const float* b, const float* c, float* to, Index count),
                      (a, b, c, to, count), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index k = 0; k < count; ++k) to[k] = a[k] + (b[k] + c[k]);
                      })

LOCKSTEP_CPU_DISPATCH(void, square_terms, (const float* x, Index rows, Index channels, Index stride, float* terms),
                      (x, rows, channels, stride, terms), {
                        for (Index row = 0; row < rows; ++row, x += channels, terms += stride) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) terms[c] = x[c] * x[c];
                        }
                      })

// A window's sum is near + ((far[0] + far[1]) + (far[2] + far[3])): cheap loads and additions. Rows are `stride` apart.
struct Sums {
  const float *near, *far[4];
  Index stride;
};

// scale = bias + alpha * sums. Returns the largest place_among_normals().
LOCKSTEP_CPU_DISPATCH(std::uint32_t, scale_rows, (const Sums& sums, Index rows, const LrnParams& params, float* scale),
                      (sums, rows, params, scale), {
                        const Index channels = params.channels;
                        const float bias = params.bias, alpha = params.alpha;
                        std::uint32_t last = 0;
                        for (Index row = 0; row < rows; ++row, scale += channels) {
                          const Index from = row * sums.stride;
                          const float *near = sums.near + from, *far0 = sums.far[0] + from, *far1 = sums.far[1] + from,
                                      *far2 = sums.far[2] + from, *far3 = sums.far[3] + from;
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) {
                            const float s = bias + alpha * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));
                            const std::uint32_t place = vm::place_among_normals(s);
                            last = place > last ? place : last;
                            scale[c] = s;
                          }
                        }
                        return last;
                      })

// For any scale, as in IEEE 754: infinity for 0, 0 for infinity, NaN for negative numbers. For normal numbers it gives
// the same bits as the fast function.
LOCKSTEP_ALWAYS_INLINE float any_three_quarters_power(float s) {
  const float root = std::sqrt(s), power = 1.0F / (root * std::sqrt(root));
  return vm::place_among_normals(s) < vm::kNormals ? vm::inverse_three_quarters_power(s) : power;
}
LOCKSTEP_ALWAYS_INLINE float any_square_root(float s) {
  return vm::place_among_normals(s) < vm::kNormals ? vm::inverse_square_root(s) : 1.0F / std::sqrt(s);
}

LOCKSTEP_ALWAYS_INLINE void prefetch_next(const float* x, const float* y, Index count) {
  prefetch_chunk(x, count), prefetch_chunk<true>(y, kPrefetchAhead / 2);
}

// y = x scale^-beta of a block; prefetches the memory of the next one.
#define LOCKSTEP_LRN_FORWARD(name, power)                                                            \
  LOCKSTEP_CPU_DISPATCH(                                                                             \
      void, name, (const float* x, const float* scale, float* y, Index count), (x, scale, y, count), \
      { LOCKSTEP_CHUNKED_LOOP(i, count, prefetch_next(x + i, y + i, count), y[i] = x[i] * power(scale[i]);) })
LOCKSTEP_LRN_FORWARD(three_quarters_forward, vm::inverse_three_quarters_power)
LOCKSTEP_LRN_FORWARD(half_forward, vm::inverse_square_root)
LOCKSTEP_LRN_FORWARD(any_three_quarters_forward, any_three_quarters_power)
LOCKSTEP_LRN_FORWARD(any_half_forward, any_square_root)
#undef LOCKSTEP_LRN_FORWARD

// powers = scale^-beta, terms = y_grad y / scale. Returns the largest place_among_normals().
#define LOCKSTEP_LRN_TERMS(name, power)                                                                       \
  LOCKSTEP_CPU_DISPATCH(std::uint32_t, name,                                                                  \
                        (const float* y_grad, const float* y, const float* scale, Index rows, Index channels, \
                         Index stride, float* powers, float* terms),                                          \
                        (y_grad, y, scale, rows, channels, stride, powers, terms), {                          \
                          std::uint32_t last = 0;                                                             \
                          for (Index row = 0; row < rows; ++row, terms += stride) {                           \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                   \
                            for (Index c = 0; c < channels; ++c) {                                            \
                              const float s = scale[c];                                                       \
                              const std::uint32_t place = vm::place_among_normals(s);                         \
                              last = place > last ? place : last;                                             \
                              powers[c] = power(s);                                                           \
                              terms[c] = y_grad[c] * y[c] / s;                                                \
                            }                                                                                 \
                            y_grad += channels, y += channels, scale += channels, powers += channels;         \
                          }                                                                                   \
                          return last;                                                                        \
                        })
LOCKSTEP_LRN_TERMS(three_quarters_terms, vm::inverse_three_quarters_power)
LOCKSTEP_LRN_TERMS(half_terms, vm::inverse_square_root)
LOCKSTEP_LRN_TERMS(any_three_quarters_terms, any_three_quarters_power)
LOCKSTEP_LRN_TERMS(any_half_terms, any_square_root)
#undef LOCKSTEP_LRN_TERMS

LOCKSTEP_CPU_DISPATCH(void, gradient_loop,
                      (const float* x, const float* y_grad, const float* powers, const Sums& sums, float factor,
                       Index rows, Index channels, bool accumulate, float* x_grad),
                      (x, y_grad, powers, sums, factor, rows, channels, accumulate, x_grad), {
                        for (Index row = 0; row < rows; ++row) {
                          const Index from = row * sums.stride;
                          const float *near = sums.near + from, *far0 = sums.far[0] + from, *far1 = sums.far[1] + from,
                                      *far2 = sums.far[2] + from, *far3 = sums.far[3] + from;
                          if (accumulate) {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] += y_grad[c] * powers[c] -
                                           factor * x[c] * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));
                          } else {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] = y_grad[c] * powers[c] -
                                          factor * x[c] * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));
                          }
                          x += channels, y_grad += channels, powers += channels, x_grad += channels;
                        }
                      })

// y = x scale^-beta of a block; `last` is the largest place_among_normals() of its scales.
void write_results(const float* x, const float* scale, float beta, std::uint32_t last, float* y, Index count) {
  const bool are_normal = last < vm::kNormals;
  if (beta == 0.75F) return (are_normal ? three_quarters_forward : any_three_quarters_forward)(x, scale, y, count);
  if (beta == 0.5F) return (are_normal ? half_forward : any_half_forward)(x, scale, y, count);
  for (Index i = 0; i < count; ++i) y[i] = x[i] * std::pow(scale[i], -beta);
}

void write_terms(const float* y_grad, const float* y, const float* scale, float beta, Index rows, Index channels,
                 Index stride, float* powers, float* terms) {
  const auto are_normal = [&](auto loop) {
    return loop(y_grad, y, scale, rows, channels, stride, powers, terms) < vm::kNormals;
  };
  if (beta == 0.75F) return void(are_normal(three_quarters_terms) || are_normal(any_three_quarters_terms));
  if (beta == 0.5F) return void(are_normal(half_terms) || are_normal(any_half_terms));
  for (Index row = 0; row < rows; ++row)
    for (Index c = 0; c < channels; ++c) {
      const Index at = row * channels + c;
      powers[at] = std::pow(scale[at], -beta);
      terms[row * stride + c] = y_grad[at] * y[at] / scale[at];
    }
}

// Temporary memory for one block of rows; rows begin at cache lines.
class Block {
 public:
  explicit Block(const LrnParams& params)
      : radius_(std::min(params.radius, params.channels - 1)),
        stride_((params.channels + radius_ + kLanes - 1) / kLanes *
                kLanes),  // the zeros after a row are also those before the next row
        rows_(std::max<Index>(1, kTerms / stride_)),
        memory_(cpu_device().allocate((3 * buffer() + rows_ * params.channels) * sizeof(float))) {
    terms_ = reinterpret_cast<float*>(memory_.data());
    std::fill_n(terms_, buffer(), 0.0F);
  }

  Index rows() const { return rows_; }
  Index stride() const { return stride_; }
  // The start of the first row; the next ones follow every stride() floats. All other floats stay 0.
  float* terms() const { return terms_ + radius_; }
  float* powers() const { return terms_ + 3 * buffer(); }

  // The sums of 2 radius + 1 neighbours; the sum for channel c of a row is at its position c. Computed by doubling:
  // sums of 2, 4, 8, ... neighbours, from which the window is composed according to the bits of its size. The last two
  // doublings are left to the caller.
  Sums window_sums(Index rows) const {
    const Index window = 2 * radius_ + 1, count = rows * stride_,
                last = static_cast<Index>(std::bit_floor(static_cast<std::size_t>(window)));
    float *const powers = terms_ + buffer(), *const sums = powers + buffer();
    if (last < 4) {
      std::fill_n(powers, count, 0.0F);
      const bool is_alone = window == 1;
      return {terms_, {is_alone ? powers : terms_ + 1, is_alone ? powers : terms_ + 2, powers, powers}, stride_};
    }
    const float *near = terms_, *from = terms_;  // sums of the first `done` neighbours, and of `power` neighbours
    Index done = 1, power = 1, length = count + window - 1;
    for (; power < last / 4; power *= 2) {
      length -= power;
      add_terms(from, from + power, powers, length);
      from = powers;
      if ((window & (2 * power)) == 0) continue;
      add_terms(near, from + done, sums, count);
      near = sums;
      done += 2 * power;
    }
    if ((window & (last / 2)) != 0) {
      add_pairs(near, from + done, from + done + power, sums, count);
      near = sums;
      done += last / 2;
    }
    from += done;
    return {near, {from, from + power, from + 2 * power, from + 3 * power}, stride_};
  }

 private:
  static constexpr Index kTerms = 512;  // floats in a block: 2 KiB in each buffer

  // The size of the rows, plus the floats that the last row's windows read after it.
  Index buffer() const { return (rows_ * stride_ + 2 * radius_ + kLanes) / kLanes * kLanes; }

  Index radius_, stride_, rows_;
  Buffer memory_;
  float* terms_;
};

void lrn(const LrnParams& params, In in, Out out, Out scales, Stream&) {
  const float* x = in.floats();
  float *y = out.floats(), *scale = scales.floats();
  if (params.channels == 0) return;
  const Block block(params);
  for (Index done = 0; done < params.rows; done += block.rows()) {
    const Index rows = std::min(block.rows(), params.rows - done), step = rows * params.channels;
    square_terms(x, rows, params.channels, block.stride(), block.terms());
    const std::uint32_t last = scale_rows(block.window_sums(rows), rows, params, scale);
    write_results(x, scale, params.beta, last, y, step);
    x += step, y += step, scale += step;
  }
}

void lrn_backward(const LrnParams& params, In in, In out, In scales, In out_grad, Out in_grad, Stream&) {
  const float *x = in.floats(), *y = out.floats(), *scale = scales.floats(), *y_grad = out_grad.floats();
  float* x_grad = in_grad.floats();
  if (params.channels == 0) return;
  const Block block(params);
  const Index channels = params.channels, stride = block.stride();
  const float factor = 2 * params.alpha * params.beta;
  for (Index done = 0; done < params.rows; done += block.rows()) {
    const Index rows = std::min(block.rows(), params.rows - done), step = rows * channels;
    write_terms(y_grad, y, scale, params.beta, rows, channels, stride, block.powers(), block.terms());
    gradient_loop(x, y_grad, block.powers(), block.window_sums(rows), factor, rows, channels, in_grad.accumulate,
                  x_grad);
    x += step, y += step, scale += step, y_grad += step, x_grad += step;
  }
}

}  // namespace

void use_lrn(KernelTable& table) {
  table.lrn = any_float<lrn>;
  table.lrn_backward = any_float<lrn_backward>;
}

}  // namespace lockstep::fast
