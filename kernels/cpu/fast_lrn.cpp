// Local response normalisation. A block of rows at a time goes through four short passes that stay in the first-level
// cache: terms into rows padded by `radius` zeros on both sides, window sums over the whole block as one long vector,
// s^-beta, the result. Beta 0.75 and 0.5 need square roots only; any other beta takes powf.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

// sums[k] = terms[k] + ... + terms[k + window - 1] for k < count, by doubling: terms hold the sums of 1, 2, 4, ...
// neighbours in turn, and the window is put together from the powers of two in it. `terms` (count + window - 1) is lost.
LOCKSTEP_CPU_DISPATCH(void, window_sums, (float* terms, float* sums, Index count, Index window), (terms, sums, count, window), {
  Index done = 0;
  Index length = count + window - 1;  // how many terms are sums of `power` neighbours
  for (Index power = 1; done < window; power *= 2) {
    if ((window & power) != 0) {
      const float* from = terms + done;
      if (done == 0) {
        LOCKSTEP_INDEPENDENT_ITERATIONS
        for (Index k = 0; k < count; ++k) sums[k] = from[k];
      } else {
        LOCKSTEP_INDEPENDENT_ITERATIONS
        for (Index k = 0; k < count; ++k) sums[k] += from[k];
      }
      done += power;
    }
    if (done == window) break;
    length -= power;
    const float* ahead = terms + power;
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index k = 0; k < length; ++k) terms[k] += ahead[k];
  }
})

LOCKSTEP_CPU_DISPATCH(void, square_terms, (const float* x, Index channels, float* terms), (x, channels, terms), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < channels; ++c) terms[c] = x[c] * x[c];
})

LOCKSTEP_CPU_DISPATCH(void, gradient_terms, (const float* y_grad, const float* y, const float* scale, Index channels, float* terms),
                      (y_grad, y, scale, channels, terms), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < channels; ++c) terms[c] = y_grad[c] * y[c] / scale[c];
                      })

LOCKSTEP_CPU_DISPATCH(void, scale_loop, (const float* sums, float bias, float alpha, Index channels, float* scale),
                      (sums, bias, alpha, channels, scale), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index c = 0; c < channels; ++c) scale[c] = bias + alpha * sums[c];
                      })

LOCKSTEP_CPU_DISPATCH(void, power_minus_three_quarters, (const float* scale, Index channels, float* powers), (scale, channels, powers), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < channels; ++c) {
    const float root = std::sqrt(scale[c]);
    powers[c] = 1.0F / (root * std::sqrt(root));
  }
})

LOCKSTEP_CPU_DISPATCH(void, power_minus_half, (const float* scale, Index channels, float* powers), (scale, channels, powers), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < channels; ++c) powers[c] = 1.0F / std::sqrt(scale[c]);
})

LOCKSTEP_CPU_DISPATCH(void, multiply_loop, (const float* x, const float* powers, Index channels, float* y), (x, powers, channels, y), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index c = 0; c < channels; ++c) y[c] = x[c] * powers[c];
})

LOCKSTEP_CPU_DISPATCH(void, gradient_loop,
                      (const float* x, const float* y_grad, const float* powers, const float* sums, float factor, Index channels,
                       bool accumulate, float* x_grad),
                      (x, y_grad, powers, sums, factor, channels, accumulate, x_grad), {
                        if (accumulate) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) x_grad[c] += y_grad[c] * powers[c] - factor * x[c] * sums[c];
                        } else {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) x_grad[c] = y_grad[c] * powers[c] - factor * x[c] * sums[c];
                        }
                      })

void inverse_power(const float* scale, float beta, Index count, float* powers) {
  if (beta == 0.75F) return power_minus_three_quarters(scale, count, powers);
  if (beta == 0.5F) return power_minus_half(scale, count, powers);
  for (Index i = 0; i < count; ++i) powers[i] = std::pow(scale[i], -beta);
}

// The work space of one block of rows, and the walk over all blocks.
class Blocks {
 public:
  explicit Blocks(const LrnParams& params)
      : radius_(std::min(params.radius, params.channels - 1)),
        stride_(params.channels + radius_),  // the zeros after a row are the zeros before the next
        rows_(std::max<Index>(1, kTerms / stride_)),
        memory_(cpu_device().allocate((rows_ * (2 * stride_ + params.channels) + radius_) * sizeof(float))) {
    auto* memory = reinterpret_cast<float*>(memory_.data());
    terms_ = memory;
    sums_ = terms_ + rows_ * stride_ + radius_;
    powers_ = sums_ + rows_ * stride_;
  }

  Index rows() const { return rows_; }
  float* powers() const { return powers_; }
  float* terms(Index row) const { return terms_ + radius_ + row * stride_; }
  const float* sums(Index row) const { return sums_ + row * stride_; }

  // Zeros around the rows: window_sums() spoils them each time.
  void clear_padding(Index rows) const {
    for (Index row = 0; row <= rows; ++row) std::fill_n(terms_ + row * stride_, radius_, 0.0F);
  }
  void sum_windows(Index rows) const { window_sums(terms_, sums_, rows * stride_ - radius_, 2 * radius_ + 1); }

 private:
  static constexpr Index kTerms = 2048;  // floats in a block: 8 KiB of terms, as much of sums, powers and operands

  Index radius_, stride_, rows_;
  Buffer memory_;
  float *terms_, *sums_, *powers_;
};

}  // namespace

void lrn(const LrnParams& params, const float* x, float* y, float* scale, Stream&) {
  if (params.channels == 0) return;
  const Blocks blocks(params);
  const Index channels = params.channels;
  for (Index done = 0; done < params.rows; done += blocks.rows()) {
    const Index rows = std::min(blocks.rows(), params.rows - done);
    blocks.clear_padding(rows);
    for (Index row = 0; row < rows; ++row) square_terms(x + row * channels, channels, blocks.terms(row));
    blocks.sum_windows(rows);
    for (Index row = 0; row < rows; ++row) scale_loop(blocks.sums(row), params.bias, params.alpha, channels, scale + row * channels);
    inverse_power(scale, params.beta, rows * channels, blocks.powers());
    multiply_loop(x, blocks.powers(), rows * channels, y);
    x += rows * channels, y += rows * channels, scale += rows * channels;
  }
}

void lrn_backward(const LrnParams& params, const float* x, const float* y, const float* scale, const float* y_grad, float* x_grad,
                  bool accumulate, Stream&) {
  if (params.channels == 0) return;
  const Blocks blocks(params);
  const Index channels = params.channels;
  const float factor = 2 * params.alpha * params.beta;
  for (Index done = 0; done < params.rows; done += blocks.rows()) {
    const Index rows = std::min(blocks.rows(), params.rows - done);
    blocks.clear_padding(rows);
    for (Index row = 0, at = 0; row < rows; ++row, at += channels)
      gradient_terms(y_grad + at, y + at, scale + at, channels, blocks.terms(row));
    blocks.sum_windows(rows);
    inverse_power(scale, params.beta, rows * channels, blocks.powers());
    for (Index row = 0, at = 0; row < rows; ++row, at += channels)
      gradient_loop(x + at, y_grad + at, blocks.powers() + at, blocks.sums(row), factor, channels, accumulate, x_grad + at);
    const Index step = rows * channels;
    x += step, y += step, scale += step, y_grad += step, x_grad += step;
  }
}

}  // namespace lockstep::fast
