// Elementwise operators and the bias.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

void fill(float* out, float value, Index count, Stream&) {
  for (Index i = 0; i < count; ++i) out[i] = value;
}

void add(const float* a, const float* b, float* out, Index count, Stream&) {
  for (Index i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void accumulate(float* sum, const float* addend, Index count, Stream&) {
  for (Index i = 0; i < count; ++i) sum[i] += addend[i];
}

void scale(const float* in, float factor, float* out, Index count, bool accumulate, Stream&) {
  for (Index i = 0; i < count; ++i) out[i] = accumulate ? out[i] + in[i] * factor : in[i] * factor;
}

void scale_by(const float* in, const float* factor, float* out, Index count, bool accumulate, Stream& stream) {
  scale(in, *factor, out, count, accumulate, stream);
}

void relu(const float* in, float* out, Index count, Stream&) {
  for (Index i = 0; i < count; ++i) out[i] = clamp_at_zero(in[i]);
}

void relu_backward(const float* y, float* grad, Index count, Stream&) {
  for (Index i = 0; i < count; ++i) grad[i] = y[i] > 0 ? grad[i] : 0;
}

void bias(float* y, const float* bias, Index rows, Index channels, Stream&) {
  for (Index row = 0; row < rows; ++row)
    for (Index c = 0; c < channels; ++c) y[row * channels + c] += bias[c];
}

void bias_backward(const float* y_grad, float* bias_grad, Index rows, Index channels, bool accumulate, Stream&) {
  for (Index c = 0; c < channels; ++c) {
    double sum = 0;
    for (Index row = 0; row < rows; ++row) sum += y_grad[row * channels + c];
    store(bias_grad[c], sum, accumulate);
  }
}

}  // namespace lockstep::reference
