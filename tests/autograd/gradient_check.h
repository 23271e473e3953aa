// Compares the gradients of backward with central differences along random directions.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/tensor/random.h"

namespace lockstep {

inline Tensor random_leaf(const Shape& shape, float low = -1, float high = 1) {
  const Tensor leaf = Tensor::empty(shape);
  fill_uniform(leaf, low, high);
  require_grad(leaf);
  return leaf;
}

inline Tensor scalar_leaf(float value) {
  const Tensor leaf = Tensor::full({}, value);
  require_grad(leaf);
  return leaf;
}

// A permutation of evenly spaced values in (-1, 1), none near 0 and no two near each other: steps of `epsilon` cross
// neither ReLU's kink nor a change of the maximum.
inline Tensor spaced_leaf(const Shape& shape, std::uint64_t seed) {
  const Tensor leaf = Tensor::empty(shape);
  const auto values = leaf.span<float>();
  const auto count = static_cast<float>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (2 * static_cast<float>(i) + 1) / count - 1;
  for (float& value : values) value += value < 0 ? -0.05f : 0.05f;
  Philox random(seed, 0);
  for (std::size_t i = values.size(); i > 1; --i)
    std::swap(values[i - 1], values[random.below(static_cast<std::uint32_t>(i))]);
  require_grad(leaf);
  return leaf;
}

// A fixed weighted sum reduces any result to a scalar, so that symmetry hides no gradient.
inline Tensor weigh(const Tensor& result) {
  const Tensor flat = reshape(result, {1, result.count()});
  const Tensor weights = Tensor::empty({1, result.count()});
  Philox random(99, 1);
  for (float& weight : weights.span<float>()) weight = random.uniform(-1, 1);
  return reshape(linear(flat, weights, Tensor()), {});
}

// `function` maps the leaves to a scalar. For each leaf, its gradient in a random direction must agree with
// (f(x + e d) - f(x - e d)) / 2e to within `tolerance` of the larger of both and of `scale`.
inline void check_gradients(const std::vector<Tensor>& leaves, const std::function<Tensor()>& function,
                            float epsilon = 1e-2f, double tolerance = 1e-2) {
  for (const Tensor& leaf : leaves) clear_grad(leaf);
  function().backward();
  for (std::size_t l = 0; l < leaves.size(); ++l) {
    ASSERT_TRUE(has_grad(leaves[l])) << "leaf " << l;
    const auto values = leaves[l].span<float>();
    const auto gradient = grad(leaves[l]).span<float>();
    for (std::uint64_t trial = 0; trial < 3; ++trial) {
      Philox random(trial, l + 7);
      std::vector<float> direction(values.size()), original(values.begin(), values.end());
      for (float& part : direction) part = random.below(2) == 0 ? -1.f : 1.f;
      double expected = 0, size = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        expected += double{gradient[i]} * direction[i];
        size += double{gradient[i]} * gradient[i];
      }
      const NoGrad no_grad;
      const auto at = [&](float step) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = original[i] + step * direction[i];
        return double{function().item()};
      };
      const double measured = (at(epsilon) - at(-epsilon)) / (2 * double{epsilon});
      std::copy(original.begin(), original.end(), values.begin());
      EXPECT_GT(size, 0) << "leaf " << l << " has a zero gradient: nothing is tested";
      EXPECT_NEAR(measured, expected, tolerance * (std::sqrt(size) + std::abs(expected)))
          << "leaf " << l << ", direction " << trial;
    }
  }
}

}  // namespace lockstep
