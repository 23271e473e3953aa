// Elementwise operators, the bias and the L2 loss.
#include <algorithm>
#include <bit>

#include "kernels/cpu/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

namespace {

LOCKSTEP_CPU_DISPATCH(void, fill_loop, (float* out, float value, Index count), (out, value, count), {
  for (Index i = 0; i < count; ++i) out[i] = value;
})

LOCKSTEP_CPU_DISPATCH(void, add_loop, (const float* a, const float* b, float* out, Index count), (a, b, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] = a[i] + b[i];
})

LOCKSTEP_CPU_DISPATCH(void, scale_loop, (const float* in, float factor, float* out, Index count), (in, factor, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] = in[i] * factor;
})

LOCKSTEP_CPU_DISPATCH(void, add_scaled_loop, (const float* in, float factor, float* out, Index count), (in, factor, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] += in[i] * factor;
})

LOCKSTEP_CPU_DISPATCH(void, relu_loop, (const float* in, float* out, Index count), (in, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] = in[i] < 0 ? 0 : in[i];
})

// Without their sign floats are ordered as their bits are, infinity above all numbers and NaN above infinity.
LOCKSTEP_CPU_DISPATCH(std::uint32_t, largest_bits, (const float* x, Index count), (x, count), {
  std::uint32_t most = 0;
  for (Index i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU;
    most = bits > most ? bits : most;
  }
  return most;
})

LOCKSTEP_CPU_DISPATCH(void, relu_backward_loop, (const float* y, float* grad, Index count), (y, grad, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) {
    const float value = grad[i];
    grad[i] = y[i] > 0 ? value : 0;
  }
})

LOCKSTEP_CPU_DISPATCH(void, bias_loop, (float* y, const float* bias, Index rows, Index channels), (y, bias, rows, channels), {
  for (Index row = 0; row < rows; ++row, y += channels) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index c = 0; c < channels; ++c) y[c] += bias[c];
  }
})

// sums += the column sums of at most a few hundred rows, four at a time.
LOCKSTEP_CPU_DISPATCH(void, column_sums_loop, (const float* in, float* sums, Index rows, Index channels), (in, sums, rows, channels), {
  Index row = 0;
  for (; row + 4 <= rows; row += 4, in += 4 * channels) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index c = 0; c < channels; ++c) sums[c] += (in[c] + in[channels + c]) + (in[2 * channels + c] + in[3 * channels + c]);
  }
  for (; row < rows; ++row, in += channels) {
    LOCKSTEP_INDEPENDENT_ITERATIONS
    for (Index c = 0; c < channels; ++c) sums[c] += in[c];
  }
})

// Sixteen sums side by side, added at the end in a fixed order: the same bits from every build.
LOCKSTEP_CPU_DISPATCH(double, sum_of_squares, (const float* x, Index count), (x, count), {
  constexpr Index kLanes = 16;
  double sums[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (Index lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      sums[lane] += value * value;
    }
  for (; i < count; ++i) sums[i % kLanes] += static_cast<double>(x[i]) * x[i];
  double total = 0;
  for (Index lane = 0; lane < kLanes; ++lane) total += sums[lane];
  return total;
})

}  // namespace

void fill(float* out, float value, Index count, Stream&) { fill_loop(out, value, count); }

void add(const float* a, const float* b, float* out, Index count, Stream&) { add_loop(a, b, out, count); }

void accumulate(float* sum, const float* addend, Index count, Stream&) { add_loop(sum, addend, sum, count); }

void scale(const float* in, float factor, float* out, Index count, bool accumulate, Stream&) {
  if (accumulate)
    add_scaled_loop(in, factor, out, count);
  else
    scale_loop(in, factor, out, count);
}

void scale_by(const float* in, const float* factor, float* out, Index count, bool accumulate, Stream& stream) {
  scale(in, *factor, out, count, accumulate, stream);
}

void relu(const float* in, float* out, Index count, Stream&) { relu_loop(in, out, count); }

float largest_magnitude(const float* x, Index count) { return std::bit_cast<float>(largest_bits(x, count)); }

void relu_backward(const float* y, float* grad, Index count, Stream&) { relu_backward_loop(y, grad, count); }

void bias(float* y, const float* bias, Index rows, Index channels, Stream&) { bias_loop(y, bias, rows, channels); }

void bias_backward(const float* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream&) {
  // Sums of sums: each float adds up at most kBlock / 4 terms of its block, then one of each block.
  constexpr Index kBlock = 256;
  const Buffer block_sums = cpu_device().allocate(channels * sizeof(float));
  auto* sums = reinterpret_cast<float*>(block_sums.data());
  if (!accumulate) fill_loop(bias_grad, 0, channels);
  for (Index row = 0; row < rows; row += kBlock) {
    fill_loop(sums, 0, channels);
    column_sums_loop(y_grad + row * channels, sums, std::min(kBlock, rows - row), channels);
    add_loop(bias_grad, sums, bias_grad, channels);
  }
}

void l2_loss(const float* x, Index count, float* loss, Stream&) { *loss = static_cast<float>(sum_of_squares(x, count) / 2); }

}  // namespace lockstep::fast
