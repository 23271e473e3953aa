// The formulas of one element of a step of recurrent networks, written once: for the CPU's plain kernels (double), for
// its vector loops (float) and for GPUs (float). `Math` has Number, logistic(x) and tanh(x); see unary_functions.h.
#pragma once

#include "kernels/always_inline.h"

namespace lockstep {

template <typename Math> struct RecurrentFormulas {
  using Number = typename Math::Number;

  // LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000): c = f * c_before + i * g and
  // h = o * tanh(c). The arguments are gates before their functions.
  struct LstmStep {
    Number i, f, g, o, c, h;
  };
  LOCKSTEP_FORMULA static LstmStep lstm(Number i, Number f, Number g, Number o, Number c_before) {
    LstmStep s{Math::logistic(i), Math::logistic(f), Math::tanh(g), Math::logistic(o), 0, 0};
    s.c = s.f * c_before + s.i * s.g;
    s.h = s.o * Math::tanh(s.c);
    return s;
  }

  // Gradients of the gates before their functions, and of c_before; the arguments are gates after their functions.
  struct LstmGrads {
    Number i, f, g, o, c_before;
  };
  LOCKSTEP_FORMULA static LstmGrads lstm_grads(Number i, Number f, Number g, Number o, Number c_before, Number c,
                                               Number h_grad, Number later_c_grad) {
    const Number t = Math::tanh(c), c_grad = later_c_grad + h_grad * o * (1 - t * t);
    return {c_grad * g * (i * (1 - i)), c_grad * c_before * (f * (1 - f)), c_grad * i * (1 - g * g),
            h_grad * t * (o * (1 - o)), c_grad * f};
  }

  // GRU (Cho et al. 2014), with the reset gate after the product, as in cuDNN and PyTorch: n = tanh(x_n + r * h_n) and
  // h = (1 - z) * n + z * h_before; x_n and h_n are the products of the input and of the state.
  struct GruStep {
    Number r, z, n, h;
  };
  LOCKSTEP_FORMULA static GruStep gru(Number r, Number z, Number x_n, Number h_n, Number h_before) {
    GruStep s{Math::logistic(r), Math::logistic(z), 0, 0};
    s.n = Math::tanh(x_n + s.r * h_n);
    s.h = s.n + s.z * (h_before - s.n);
    return s;
  }

  // `n` is the gradient of x_n; that of h_n is `state_n`. h_before: only its direct part, h_grad * z.
  struct GruGrads {
    Number r, z, n, state_n, h_before;
  };
  LOCKSTEP_FORMULA static GruGrads gru_grads(Number r, Number z, Number n, Number h_n, Number h_before, Number h_grad) {
    const Number n_grad = h_grad * (1 - z) * (1 - n * n);
    return {n_grad * h_n * (r * (1 - r)), h_grad * (h_before - n) * (z * (1 - z)), n_grad, n_grad * r, h_grad * z};
  }
};

}  // namespace lockstep
