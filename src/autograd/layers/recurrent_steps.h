// The steps of a recurrent layer in memory, and the gradients of its weights.
#pragma once

#include <span>

#include "lockstep/autograd/extend.h"

namespace lockstep {

// In which order the steps are computed.
struct StepOrder {
  std::int64_t steps = 0;
  bool reversed = false;

  std::int64_t step(std::int64_t nth) const { return reversed ? steps - 1 - nth : nth; }
};

// Step `step` of a tensor (T, N, C), as (N, C).
inline InputView step_of(const Tensor& x, std::int64_t step) {
  const std::int64_t bytes = step * x.shape()[1] * x.shape()[2] * static_cast<std::int64_t>(size_of(x.dtype()));
  return {x.buffer().data() + bytes, x.dtype(), {x.shape()[1], x.shape()[2]}};
}
inline OutputView writable_step(const Tensor& x, std::int64_t step) {
  const InputView view = step_of(x, step);
  return {const_cast<void*>(view.data), view.dtype, view.shape};
}
inline OutputView added(OutputView view) {
  view.accumulate = true;
  return view;
}

// (T, N, C) as (T N, C): all steps, or `count` steps from `first` on.
inline InputView as_rows(const Tensor& x, std::int64_t first, std::int64_t count) {
  return {step_of(x, first).data, x.dtype(), {count * x.shape()[1], x.shape()[2]}};
}
inline InputView as_rows(const Tensor& x) { return as_rows(x, 0, x.shape()[0]); }
inline OutputView writable_rows(const Tensor& x) {
  const InputView view = as_rows(x);
  return {const_cast<void*>(view.data), view.dtype, view.shape};
}

// The operands of a layer: its input (T, N, I), the weight for it, the states of its steps, and the state before the
// first.
struct RecurrentOperands {
  Tensor x, weight_ih, states, first_state;
};

// Writes the gradients of x and of the weights (weight_ih, weight_hh, bias_ih, bias_hh), given those of the products of
// all steps with the input and with the state.
inline void write_weight_grads(const RecurrentOperands& of, const Tensor& input_grad, const Tensor& state_grad,
                               const StepOrder& order, const GradTarget& x_grad, std::span<const GradTarget> weights) {
  const KernelTable& kernels = kernels_of(input_grad);
  Stream& stream = stream_of(input_grad);
  const auto& [weight_ih, weight_hh, bias_ih, bias_hh] = std::tie(weights[0], weights[1], weights[2], weights[3]);
  if (weight_ih)
    kernels.linear_backward_weights(as_rows(of.x), as_rows(input_grad), weight_ih, bias_ih, stream);
  else if (bias_ih)
    kernels.bias_backward(as_rows(input_grad), bias_ih, stream);
  if (weight_hh) {
    const std::int64_t first = order.step(0), others = order.steps - 1;
    kernels.linear_backward_weights(of.first_state, step_of(state_grad, first), weight_hh, {}, stream);
    // Each of the other steps read the state of the step before.
    if (others > 0)
      kernels.linear_backward_weights(as_rows(of.states, order.reversed ? 1 : 0, others),
                                      as_rows(state_grad, order.reversed ? 0 : 1, others), weight_hh.again(), {},
                                      stream);
  }
  if (bias_hh) kernels.bias_backward(as_rows(state_grad), bias_hh, stream);
  if (x_grad) {
    const OutputView view = x_grad;
    kernels.linear_backward_data(as_rows(input_grad), of.weight_ih,
                                 {view.data, view.dtype, as_rows(of.x).shape, view.accumulate}, stream);
  }
}

}  // namespace lockstep
