// Local response normalisation. A block of rows at a time goes through short passes that stay in the first-level cache: terms into rows
// padded by at least `radius` zeros, window sums over the whole block as one long vector, the result. Beta 0.75 and 0.5 need square roots
// only; any other beta takes powf.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/lanes.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// to[k] = a[k] + b[k]; `to` may be a.
LOCKSTEP_CPU_DISPATCH(void, add_terms, (const float* a, const float* b, float* to, Index count), (a, b, to, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index k = 0; k < count; ++k) to[k] = a[k] + b[k];
})

// to[k] = a[k] + (b[k] + c[k]); `to` may be a.
LOCKSTEP_CPU_DISPATCH(void, add_pairs, (const float* a, const float* b, const float* c, float* to, Index count), (a, b, c, to, count), {
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

// A window's sum is near + ((far[0] + far[1]) + (far[2] + far[3])): loads and additions that cost little beside roots and divisions. Rows
// are `stride` apart.
struct Sums {
  const float *near, *far[4];
  Index stride;
};

// scale = bias + alpha * sums, y = x scale^-beta, of which POWER computes the power.
#define LOCKSTEP_LRN_FORWARD(name, POWER)                                                                                            \
  LOCKSTEP_CPU_DISPATCH(void, name, (const float* x, const Sums& sums, Index rows, const LrnParams& params, float* scale, float* y), \
                        (x, sums, rows, params, scale, y), {                                                                         \
                          const Index channels = params.channels;                                                                    \
                          const float bias = params.bias, alpha = params.alpha;                                                      \
                          for (Index row = 0; row < rows; ++row) {                                                                   \
                            const Index from = row * sums.stride;                                                                    \
                            const float *near = sums.near + from, *far0 = sums.far[0] + from, *far1 = sums.far[1] + from,            \
                                        *far2 = sums.far[2] + from, *far3 = sums.far[3] + from;                                      \
                            LOCKSTEP_INDEPENDENT_ITERATIONS                                                                          \
                            for (Index c = 0; c < channels; ++c) {                                                                   \
                              const float s = bias + alpha * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));                \
                              const float root = std::sqrt(s);                                                                       \
                              scale[c] = s;                                                                                          \
                              y[c] = x[c] * (POWER);                                                                                 \
                            }                                                                                                        \
                            x += channels, scale += channels, y += channels;                                                         \
                          }                                                                                                          \
                        })
LOCKSTEP_LRN_FORWARD(scale_by_three_quarters, 1.0F / (root * std::sqrt(root)))
LOCKSTEP_LRN_FORWARD(scale_by_half, 1.0F / root)
#undef LOCKSTEP_LRN_FORWARD

// powers = scale^-beta, terms = y_grad y / scale; INVERSE is 1 / scale by the power and the root.
#define LOCKSTEP_LRN_TERMS(name, POWER, INVERSE)                                                                                        \
  LOCKSTEP_CPU_DISPATCH(                                                                                                                \
      void, name,                                                                                                                       \
      (const float* y_grad, const float* y, const float* scale, Index rows, Index channels, Index stride, float* powers, float* terms), \
      (y_grad, y, scale, rows, channels, stride, powers, terms), {                                                                      \
        for (Index row = 0; row < rows; ++row, terms += stride) {                                                                       \
          LOCKSTEP_INDEPENDENT_ITERATIONS                                                                                               \
          for (Index c = 0; c < channels; ++c) {                                                                                        \
            const float root = std::sqrt(scale[c]);                                                                                     \
            const float power = POWER;                                                                                                  \
            powers[c] = power;                                                                                                          \
            terms[c] = y_grad[c] * y[c] * (INVERSE);                                                                                    \
          }                                                                                                                             \
          y_grad += channels, y += channels, scale += channels, powers += channels;                                                     \
        }                                                                                                                               \
      })
LOCKSTEP_LRN_TERMS(terms_of_three_quarters, 1.0F / (root * std::sqrt(root)), power* power* root)
LOCKSTEP_LRN_TERMS(terms_of_half, 1.0F / root, power* power)
#undef LOCKSTEP_LRN_TERMS

LOCKSTEP_CPU_DISPATCH(void, gradient_loop,
                      (const float* x, const float* y_grad, const float* powers, const Sums& sums, float factor, Index rows, Index channels,
                       bool accumulate, float* x_grad),
                      (x, y_grad, powers, sums, factor, rows, channels, accumulate, x_grad), {
                        for (Index row = 0; row < rows; ++row) {
                          const Index from = row * sums.stride;
                          const float *near = sums.near + from, *far0 = sums.far[0] + from, *far1 = sums.far[1] + from,
                                      *far2 = sums.far[2] + from, *far3 = sums.far[3] + from;
                          if (accumulate) {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] += y_grad[c] * powers[c] - factor * x[c] * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));
                          } else {
                            LOCKSTEP_INDEPENDENT_ITERATIONS
                            for (Index c = 0; c < channels; ++c)
                              x_grad[c] = y_grad[c] * powers[c] - factor * x[c] * (near[c] + ((far0[c] + far1[c]) + (far2[c] + far3[c])));
                          }
                          x += channels, y_grad += channels, powers += channels, x_grad += channels;
                        }
                      })

void scale_by_any(const float* x, const Sums& sums, Index rows, const LrnParams& params, float* scale, float* y) {
  for (Index row = 0; row < rows; ++row)
    for (Index c = 0; c < params.channels; ++c) {
      const Index at = row * params.channels + c, from = row * sums.stride + c;
      scale[at] = params.bias +
                  params.alpha * (sums.near[from] + ((sums.far[0][from] + sums.far[1][from]) + (sums.far[2][from] + sums.far[3][from])));
      y[at] = x[at] * std::pow(scale[at], -params.beta);
    }
}

void terms_of_any(const float* y_grad, const float* y, const float* scale, float beta, Index rows, Index channels, Index stride,
                  float* powers, float* terms) {
  for (Index row = 0; row < rows; ++row)
    for (Index c = 0; c < channels; ++c) {
      const Index at = row * channels + c;
      powers[at] = std::pow(scale[at], -beta);
      terms[row * stride + c] = y_grad[at] * y[at] / scale[at];
    }
}

// The work space of one block of rows, whose rows begin at cache lines.
class Block {
 public:
  explicit Block(const LrnParams& params)
      : radius_(std::min(params.radius, params.channels - 1)),
        stride_((params.channels + radius_ + kLanes - 1) / kLanes * kLanes),  // the zeros after a row are the zeros before the next
        rows_(std::max<Index>(1, kTerms / stride_)),
        memory_(cpu_device().allocate((3 * buffer() + rows_ * params.channels) * sizeof(float))) {
    terms_ = reinterpret_cast<float*>(memory_.data());
    std::fill_n(terms_, buffer(), 0.0F);
  }

  Index rows() const { return rows_; }
  Index stride() const { return stride_; }
  float* terms() const { return terms_ + radius_; }  // of the first row; the next ones' are stride() further. All else stays 0
  float* powers() const { return terms_ + 3 * buffer(); }

  // The sums of 2 radius + 1 neighbours, for channel c of a row at its place c. By doubling: sums of 2, 4, 8, ... neighbours, and the
  // window is put together from its powers of two. The last two doublings are left to the caller.
  Sums window_sums(Index rows) const {
    const Index window = 2 * radius_ + 1, count = rows * stride_,
                last = static_cast<Index>(std::bit_floor(static_cast<std::size_t>(window)));
    float *const powers = terms_ + buffer(), *const sums = powers + buffer();
    if (last < 4) {
      std::fill_n(powers, count, 0.0F);
      const bool is_alone = window == 1;
      return {terms_, {is_alone ? powers : terms_ + 1, is_alone ? powers : terms_ + 2, powers, powers}, stride_};
    }
    const float *near = terms_, *from = terms_;  // sums of the `done` first neighbours, and of `power` ones
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
  static constexpr Index kTerms = 2048;  // floats in a block: 8 KiB of each buffer

  // Rows, and what the last row's windows reach behind it.
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
  const auto scale_rows = params.beta == 0.75F ? scale_by_three_quarters : params.beta == 0.5F ? scale_by_half : scale_by_any;
  for (Index done = 0; done < params.rows; done += block.rows()) {
    const Index rows = std::min(block.rows(), params.rows - done), step = rows * params.channels;
    square_terms(x, rows, params.channels, block.stride(), block.terms());
    scale_rows(x, block.window_sums(rows), rows, params, scale, y);
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
    if (params.beta == 0.75F)
      terms_of_three_quarters(y_grad, y, scale, rows, channels, stride, block.powers(), block.terms());
    else if (params.beta == 0.5F)
      terms_of_half(y_grad, y, scale, rows, channels, stride, block.powers(), block.terms());
    else
      terms_of_any(y_grad, y, scale, params.beta, rows, channels, stride, block.powers(), block.terms());
    gradient_loop(x, y_grad, block.powers(), block.window_sums(rows), factor, rows, channels, in_grad.accumulate, x_grad);
    x += step, y += step, scale += step, y_grad += step, x_grad += step;
  }
}

}  // namespace

void use_lrn(KernelTable& table) {
  table.lrn = any_float<lrn>;
  table.lrn_backward = any_float<lrn_backward>;
}

}  // namespace lockstep::fast
