// A model with two independent towers on different devices, whose outputs are combined on the first.
#pragma once

#include "tests/train/strategy_training.h"

namespace lockstep::train {

// (N, inputs) to (N, outputs).
struct TwoPaths : nn::Module {
  nn::Linear left, right, out;
  Device &first, &second;
  TwoPaths(std::int64_t inputs, std::int64_t outputs, Device& first, Device& second)
      : left(inputs, 4, {.activation = Activation::kReLU}),
        right(inputs, 4, {.activation = Activation::kReLU}),
        out(8, outputs),
        first(first),
        second(second) {
    add("left", left);
    add("right", right);
    add("out", out);
    left.to(first);
    right.to(second);
    out.to(first);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor a = left(to_device(x, first)), b = right(to_device(x, second));
    return out(concat({a, to_device(b, first)}, 1));
  }
};

}  // namespace lockstep::train
