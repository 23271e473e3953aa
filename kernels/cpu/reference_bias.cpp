// The bias is added to each row; its gradient is the sum over the rows.
#include "kernels/cpu/reference.h"

namespace lockstep::reference {

namespace {

void add_bias(Out y, In bias, Stream&) {
  float* const to = y.floats();
  const float* const offsets = bias.floats();
  for (Index i = 0; i < y.count(); ++i) to[i] += offsets[i % bias.count()];
}

}  // namespace

void bias_backward(In y_grad, Out bias_grad, Stream&) {
  const float* const grad = y_grad.floats();
  const Index channels = bias_grad.count();
  for (Index c = 0; c < channels; ++c) {
    double sum = 0;
    for (Index i = c; i < y_grad.count(); i += channels) sum += grad[i];
    store(bias_grad.floats()[c], sum, bias_grad.accumulate);
  }
}

void use_bias(KernelTable& table) {
  table.bias = any_float<add_bias>;
  table.bias_backward = any_float<bias_backward>;
}

}  // namespace lockstep::reference
