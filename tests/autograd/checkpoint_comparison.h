// Runs functions directly and in checkpoints, to compare their results.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {

inline std::vector<float> numbers(const Tensor& tensor) {
  return {tensor.span<float>().begin(), tensor.span<float>().end()};
}

// Runs a function directly or in a checkpoint.
inline Tensor maybe(bool in_checkpoint, const std::function<Tensor(const Tensor&)>& function, const Tensor& x) {
  return in_checkpoint ? checkpoint(function, x) : function(x);
}

// Result and gradients of a loss over leaves.
inline std::vector<std::vector<float>> results_of(const std::function<Tensor()>& loss_of,
                                                  const std::vector<Tensor>& leaves) {
  for (const Tensor& leaf : leaves) clear_grad(leaf);
  const Tensor loss = loss_of();
  loss.backward();
  std::vector<std::vector<float>> all = {numbers(loss)};
  for (const Tensor& leaf : leaves) {
    EXPECT_TRUE(has_grad(leaf));
    all.push_back(numbers(grad(leaf)));
  }
  return all;
}

// Multiplies by random numbers, like dropout.
inline Tensor randomly_scaled(const Tensor& x) {
  const Tensor factors = Tensor::empty({1});
  fill_uniform(factors, 1, 2);
  return scale(x, factors.span<float>()[0]);
}

}  // namespace lockstep
