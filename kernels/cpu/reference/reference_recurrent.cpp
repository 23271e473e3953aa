// Steps of recurrent layers.
#include <cmath>

#include "kernels/cpu/reference/reference.h"
#include "kernels/recurrent_formulas.h"
#include "kernels/recurrent_rows.h"

namespace lockstep::reference {

namespace {

struct DoubleGates {
  using Number = double;
  static double logistic(double x) { return 1 / (1 + std::exp(-x)); }
  static double tanh(double x) { return std::tanh(x); }
};
using StepFormulas = RecurrentFormulas<DoubleGates>;

void lstm_step(Index step, In from_state, In h_before, In c_before, In lengths, Out gates, Out h, Out c, Stream&) {
  const EndedRows ended(step, lengths);
  const Index rows = h.shape[0], width = h.shape[1];
  for (Index row = 0, at = 0; row < rows; ++row)
    for (Index k = 0; k < width; ++k, ++at) {
      float* const gate = gates.floats() + row * 4 * width + k;
      const float* const products = from_state.floats() + row * 4 * width + k;
      const auto sum = [&](Index which) { return double{gate[which * width]} + products[which * width]; };
      const StepFormulas::LstmStep s = StepFormulas::lstm(sum(0), sum(1), sum(2), sum(3), c_before.floats()[at]);
      const double values[] = {s.i, s.f, s.g, s.o};
      for (Index which = 0; which < 4; ++which) gate[which * width] = static_cast<float>(values[which]);
      h.floats()[at] = ended(row) ? h_before.floats()[at] : static_cast<float>(s.h);
      c.floats()[at] = ended(row) ? c_before.floats()[at] : static_cast<float>(s.c);
    }
}

void lstm_step_backward(Index step, In gates, In c_before, In c, In h_grad, In lengths, Out gates_grad,
                        Out h_before_grad, Out c_grad, Stream&) {
  const EndedRows ended(step, lengths);
  const Index rows = c.shape[0], width = c.shape[1];
  for (Index row = 0, at = 0; row < rows; ++row)
    for (Index k = 0; k < width; ++k, ++at) {
      const float* const gate = gates.floats() + row * 4 * width + k;
      StepFormulas::LstmGrads grads =
          StepFormulas::lstm_grads(gate[0], gate[width], gate[2 * width], gate[3 * width], c_before.floats()[at],
                                   c.floats()[at], h_grad.floats()[at], c_grad.floats()[at]);
      if (ended(row)) {
        grads = {0, 0, 0, 0, c_grad.floats()[at]};
        h_before_grad.floats()[at] += h_grad.floats()[at];
      }
      const double values[] = {grads.i, grads.f, grads.g, grads.o};
      for (Index which = 0; which < 4; ++which)
        gates_grad.floats()[(row * 4 + which) * width + k] = static_cast<float>(values[which]);
      c_grad.floats()[at] = static_cast<float>(grads.c_before);
    }
}

void gru_step(Index step, In from_input, In from_state, In h_before, In lengths, Out gates, Out h, Stream&) {
  const EndedRows ended(step, lengths);
  const Index rows = h.shape[0], width = h.shape[1];
  for (Index row = 0, at = 0; row < rows; ++row)
    for (Index k = 0; k < width; ++k, ++at) {
      const float *const x = from_input.floats() + row * 3 * width + k, *const state =
                                                                            from_state.floats() + row * 3 * width + k;
      const StepFormulas::GruStep s = StepFormulas::gru(double{x[0]} + state[0], double{x[width]} + state[width],
                                                        x[2 * width], state[2 * width], h_before.floats()[at]);
      const double values[] = {s.r, s.z, s.n, state[2 * width]};
      for (Index which = 0; which < 4; ++which)
        gates.floats()[(row * 4 + which) * width + k] = static_cast<float>(values[which]);
      h.floats()[at] = ended(row) ? h_before.floats()[at] : static_cast<float>(s.h);
    }
}

void gru_step_backward(Index step, In gates, In h_before, In h_grad, In lengths, Out input_grad, Out state_grad,
                       Out h_before_grad, Stream&) {
  const EndedRows ended(step, lengths);
  const Index rows = h_grad.shape[0], width = h_grad.shape[1];
  for (Index row = 0, at = 0; row < rows; ++row)
    for (Index k = 0; k < width; ++k, ++at) {
      const float* const gate = gates.floats() + row * 4 * width + k;
      StepFormulas::GruGrads grads = StepFormulas::gru_grads(gate[0], gate[width], gate[2 * width], gate[3 * width],
                                                             h_before.floats()[at], h_grad.floats()[at]);
      if (ended(row)) grads = {0, 0, 0, 0, h_grad.floats()[at]};
      float *const x = input_grad.floats() + row * 3 * width + k, *const state =
                                                                      state_grad.floats() + row * 3 * width + k;
      x[0] = state[0] = static_cast<float>(grads.r);
      x[width] = state[width] = static_cast<float>(grads.z);
      x[2 * width] = static_cast<float>(grads.n);
      state[2 * width] = static_cast<float>(grads.state_n);
      h_before_grad.floats()[at] += static_cast<float>(grads.h_before);
    }
}

}  // namespace

void use_recurrent(KernelTable& table) {
  table.lstm_step = any_float<lstm_step>;
  table.lstm_step_backward = any_float<lstm_step_backward>;
  table.gru_step = any_float<gru_step>;
  table.gru_step_backward = any_float<gru_step_backward>;
}

}  // namespace lockstep::reference
