// Elementwise operators.
#include <algorithm>
#include <bit>
#include <cstddef>

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

}  // namespace lockstep::fast
