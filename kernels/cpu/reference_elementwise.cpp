// Elementwise operators.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

void fill(Out out, float value, Stream&) {
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = value;
}

void convert(In in, Out out, Stream&) {
  const Index count = in.count();
  const Buffer memory = cpu_device().allocate(static_cast<std::size_t>(count) * 2 * sizeof(float));
  auto* const values = reinterpret_cast<float*>(memory.data());
  widen(in.dtype, in.data, values, count);
  if (out.accumulate) {
    float* const before = values + count;
    widen(out.dtype, out.data, before, count);
    for (Index i = 0; i < count; ++i) values[i] += before[i];
  }
  narrow(out.dtype, values, out.data, count);
}

void add(In a, In b, Out out, Stream&) {
  const float *x = a.floats(), *y = b.floats();
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = x[i] + y[i];
}

void scale(In in, float factor, Out out, Stream&) {
  const float* const from = in.floats();
  float* const to = out.floats();
  for (Index i = 0; i < out.count(); ++i) to[i] = out.accumulate ? to[i] + from[i] * factor : from[i] * factor;
}

void scale_by(In in, In factor, Out out, Stream& stream) { scale(in, *factor.floats(), out, stream); }

void relu(In x, Out y, Stream&) {
  const float* const from = x.floats();
  float* const to = y.floats();
  for (Index i = 0; i < y.count(); ++i) to[i] = clamp_at_zero(from[i]);
}

void relu_backward(In y, Out grad, Stream&) {
  const float* const result = y.floats();
  float* const to = grad.floats();
  for (Index i = 0; i < grad.count(); ++i) to[i] = result[i] > 0 ? to[i] : 0;
}

}  // namespace

void use_elementwise(KernelTable& table) {
  table.fill = fill;
  table.convert = convert;
  table.add = any_float<add>;
  table.scale = any_float<scale>;
  table.scale_by = scale_by;
  table.relu = any_float<relu>;
  table.relu_backward = any_float<relu_backward>;
}

}  // namespace lockstep::reference
