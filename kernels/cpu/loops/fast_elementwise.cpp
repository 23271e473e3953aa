// Elementwise operators, and the bias.
#include <algorithm>
#include <bit>
#include <cstddef>

#include "kernels/cpu/loops/fast.h"
#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::fast {

// -- arithmetic

namespace {

LOCKSTEP_CPU_DISPATCH(void, fill_loop, (float* out, float value, Index count), (out, value, count), {
  for (Index i = 0; i < count; ++i) out[i] = value;
})

LOCKSTEP_CPU_DISPATCH(void, add_loop, (const float* a, const float* b, float* out, Index count), (a, b, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] = a[i] + b[i];
})

LOCKSTEP_CPU_DISPATCH(void, scale_loop, (const float* in, float factor, float* out, Index count),
                      (in, factor, out, count), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) out[i] = in[i] * factor;
                      })

LOCKSTEP_CPU_DISPATCH(void, add_scaled_loop, (const float* in, float factor, float* out, Index count),
                      (in, factor, out, count), {
                        LOCKSTEP_INDEPENDENT_ITERATIONS
                        for (Index i = 0; i < count; ++i) out[i] += in[i] * factor;
                      })

LOCKSTEP_CPU_DISPATCH(void, relu_loop, (const float* in, float* out, Index count), (in, out, count), {
  LOCKSTEP_INDEPENDENT_ITERATIONS
  for (Index i = 0; i < count; ++i) out[i] = in[i] < 0 ? 0 : in[i];
})

// The absolute values of floats have the same order as their bits, with infinity above all numbers and NaN above
// infinity.
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

void fill(Out out, float value, Stream&) { fill_loop(out.floats(), value, out.count()); }

// Converts directly if one type is float32 and nothing is added; otherwise in tiles of float32.
void convert(In in, Out out, Stream&) {
  constexpr Index kTile = 1024;
  const Index count = in.count();
  if (!out.accumulate && in.dtype == DType::kFloat32 && out.dtype != DType::kFloat32)
    return narrow(out.dtype, in.floats(), out.data, count);
  if (!out.accumulate && out.dtype == DType::kFloat32 && in.dtype != DType::kFloat32)
    return widen(in.dtype, in.data, out.floats(), count);
  float values[kTile], before[kTile];
  const auto* const from = static_cast<const std::byte*>(in.data);
  auto* const to = static_cast<std::byte*>(out.data);
  const auto in_bytes = static_cast<Index>(size_of(in.dtype)), out_bytes = static_cast<Index>(size_of(out.dtype));
  for (Index i = 0; i < count; i += kTile) {
    const Index length = std::min(kTile, count - i);
    widen(in.dtype, from + i * in_bytes, values, length);
    if (out.accumulate) {
      widen(out.dtype, to + i * out_bytes, before, length);
      add_loop(values, before, values, length);
    }
    narrow(out.dtype, values, to + i * out_bytes, length);
  }
}

void add(In a, In b, Out out, Stream&) { add_loop(a.floats(), b.floats(), out.floats(), out.count()); }

void scale(In in, float factor, Out out, Stream&) {
  if (out.accumulate)
    add_scaled_loop(in.floats(), factor, out.floats(), out.count());
  else
    scale_loop(in.floats(), factor, out.floats(), out.count());
}

void scale_by(In in, In factor, Out out, Stream& stream) { scale(in, *factor.floats(), out, stream); }

void relu(In x, Out y, Stream&) { relu_loop(x.floats(), y.floats(), y.count()); }

void relu_backward(In y, Out grad, Stream&) { relu_backward_loop(y.floats(), grad.floats(), grad.count()); }

}  // namespace

float largest_magnitude(const float* x, Index count) { return std::bit_cast<float>(largest_bits(x, count)); }

void use_elementwise(KernelTable& table) {
  table.fill = fill;
  table.convert = convert;
  table.add = any_float<add>;
  table.scale = any_float<scale>;
  table.scale_by = scale_by;
  table.relu = any_float<relu>;
  table.relu_backward = any_float<relu_backward>;
}

// -- bias: it is added to each row; its gradient is the sum over the rows

namespace {

LOCKSTEP_CPU_DISPATCH(void, bias_loop, (float* y, const float* bias, Index rows, Index channels),
                      (y, bias, rows, channels), {
                        for (Index row = 0; row < rows; ++row, y += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) y[c] += bias[c];
                        }
                      })

// sums += the column sums of at most a few hundred rows, four at a time.
LOCKSTEP_CPU_DISPATCH(void, column_sums_loop, (const float* in, float* sums, Index rows, Index channels),
                      (in, sums, rows, channels), {
                        Index row = 0;
                        for (; row + 4 <= rows; row += 4, in += 4 * channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c)
                            sums[c] += (in[c] + in[channels + c]) + (in[2 * channels + c] + in[3 * channels + c]);
                        }
                        for (; row < rows; ++row, in += channels) {
                          LOCKSTEP_INDEPENDENT_ITERATIONS
                          for (Index c = 0; c < channels; ++c) sums[c] += in[c];
                        }
                      })

void add_bias(Out y, In bias, Stream&) {
  const Index channels = bias.count();
  if (channels > 0) bias_loop(y.floats(), bias.floats(), y.count() / channels, channels);
}

void bias_backward(In y_grad, Out bias_grad, Stream&) {
  const Index channels = bias_grad.count();
  if (!bias_grad.accumulate) std::fill_n(bias_grad.floats(), channels, 0.0F);
  if (channels > 0) add_column_sums(y_grad.floats(), y_grad.count() / channels, channels, bias_grad.floats());
}

}  // namespace

void add_column_sums(const float* x, Index rows, Index columns, float* sums) {
  // Sums of sums: each float adds at most kBlock / 4 terms of its block, then one term per block.
  constexpr Index kBlock = 256;
  const Buffer memory = cpu_device().allocate(static_cast<std::size_t>(columns) * sizeof(float));
  auto* const block_sums = reinterpret_cast<float*>(memory.data());
  for (Index row = 0; row < rows; row += kBlock) {
    std::fill_n(block_sums, columns, 0.0F);
    column_sums_loop(x + row * columns, block_sums, std::min(kBlock, rows - row), columns);
    bias_loop(sums, block_sums, 1, columns);
  }
}

void use_bias(KernelTable& table) {
  table.bias = any_float<add_bias>;
  table.bias_backward = any_float<bias_backward>;
}

}  // namespace lockstep::fast
