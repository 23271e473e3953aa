// The state of the thread that a checkpoint's second run restores: random numbers, sample numbers, the AutoCast.
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/dropout.h"
#include "tests/autograd/checkpoint_comparison.h"

namespace lockstep {
namespace {

TEST(CheckpointContext, TheSecondRunDrawsTheSameRandomNumbers) {
  const Tensor x = scalar_leaf(1);
  const auto loss_of = [&](bool in_checkpoint) {
    manual_seed(7);
    const Tensor y = maybe(
        in_checkpoint, [](const Tensor& input) { return randomly_scaled(randomly_scaled(input)); }, x);
    return randomly_scaled(y);
  };
  const auto plain = results_of([&] { return loss_of(false); }, {x});
  const RandomState after = random_state();
  EXPECT_EQ(results_of([&] { return loss_of(true); }, {x}), plain);
  EXPECT_EQ(random_state(), after) << "backward leaves the thread's state as it was";
  EXPECT_EQ(plain[0], plain[1]) << "the gradient of a product with 1 is the product";
}

// Two micro-batches run forward before the first runs backward: backward finds the other one's first sample on its
// thread.
TEST(CheckpointContext, TheSecondRunDropsOfTheSameSamples) {
  manual_seed(8);
  const Tensor x = random_leaf({4, 8});
  const auto loss_of = [&](bool in_checkpoint) {
    manual_seed(7);
    set_sample_numbers({.first = 4, .stride = 2});
    const Tensor loss = weigh(maybe(
        in_checkpoint, [](const Tensor& input) { return dropout(input, 0.5F); }, x));
    set_first_sample(8);
    return loss;
  };
  const auto plain = results_of([&] { return loss_of(false); }, {x});
  EXPECT_EQ(results_of([&] { return loss_of(true); }, {x}), plain);
  EXPECT_EQ(sample_numbers(), (SampleNumbers{.first = 8, .stride = 1}))
      << "backward leaves the thread's samples as they were";
  set_first_sample(0);
}

TEST(CheckpointContext, TheSecondRunCastsAsTheFirst) {
  manual_seed(4);
  const Tensor x = random_leaf({4, 8}), weight = random_leaf({8, 8});
  std::vector<DType> seen;
  const auto block = [&](const Tensor& input) {
    seen.push_back(AutoCast::active());
    return linear(input, weight, Tensor());
  };
  const auto loss_of = [&](bool in_checkpoint) {
    const AutoCast half(DType::kBFloat16);
    return l2_loss(maybe(in_checkpoint, block, maybe(in_checkpoint, block, x)));  // the input between them has 16 bits
  };
  const auto plain = results_of([&] { return loss_of(false); }, {x, weight});
  EXPECT_EQ(results_of([&] { return loss_of(true); }, {x, weight}), plain);
  EXPECT_EQ(seen, std::vector<DType>(6, DType::kBFloat16));
  const Tensor loss = checkpoint([&](const Tensor& input) { return l2_loss(block(input)); }, x);
  const AutoCast other(DType::kFloat16);
  loss.backward();
  EXPECT_EQ(seen.back(), DType::kFloat32) << "none, whatever surrounds backward()";
  EXPECT_EQ(AutoCast::active(), DType::kFloat16);
}

TEST(CheckpointContext, BackwardWorksUnderNoGradAndHooksSeeTheirOwnContext) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(1);
  manual_seed(9);
  const Tensor loss = checkpoint([&](const Tensor& input) { return randomly_scaled(add(input, inner)); }, x);
  const RandomState outside = random_state();
  bool recording_in_hook = true;
  const HookHandle hook = register_grad_hook(inner, [&](const Tensor&) {
    recording_in_hook = requires_grad(scale(inner, 1));
    EXPECT_EQ(random_state(), outside);
  });
  {
    const NoGrad no_grad;
    loss.backward();
    EXPECT_TRUE(NoGrad::active());
  }
  EXPECT_FALSE(recording_in_hook);
  EXPECT_TRUE(has_grad(x));
}

}  // namespace
}  // namespace lockstep
