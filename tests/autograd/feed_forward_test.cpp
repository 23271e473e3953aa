// The feed-forward block is the three calls that it replaces, in its result and in every gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/autocast.h"
#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Block {
  Tensor x;
  FeedForwardWeights weights;
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = {x, weights.up_weight, weights.down_weight};
    for (const Tensor& bias : {weights.up_bias, weights.down_bias})
      if (bias.defined()) all.push_back(bias);
    return all;
  }
  Tensor fused(GeluApproximation approximation) const { return feed_forward(x, weights, approximation); }
  Tensor apart(GeluApproximation approximation) const {
    return linear(gelu(linear(x, weights.up_weight, weights.up_bias), approximation), weights.down_weight,
                  weights.down_bias);
  }
};

Block block(bool with_biases) {
  manual_seed(5);
  return {random_leaf({2, 3, 5}),
          {random_leaf({8, 5}), with_biases ? random_leaf({8}) : Tensor(), random_leaf({4, 8}),
           with_biases ? random_leaf({4}) : Tensor()}};
}

std::vector<std::vector<float>> gradients(const Block& of, const Tensor& y) {
  for (const Tensor& leaf : of.leaves()) clear_grad(leaf);
  weigh(y).backward();
  std::vector<std::vector<float>> all;
  for (const Tensor& leaf : of.leaves()) {
    const auto values = grad(leaf).span<float>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

TEST(FeedForward, IsTheThreeCallsThatItReplaces) {
  for (const bool with_biases : {false, true})
    for (const GeluApproximation approximation : {GeluApproximation::kNone, GeluApproximation::kTanh}) {
      const Block of = block(with_biases);
      const Tensor fused = of.fused(approximation), apart = of.apart(approximation);
      EXPECT_EQ(fused.shape(), (Shape{2, 3, 4}));
      EXPECT_TRUE(std::equal(fused.span<float>().begin(), fused.span<float>().end(), apart.span<float>().begin()));
      EXPECT_EQ(gradients(of, fused), gradients(of, apart));
      check_gradients(
          of.leaves(), [&] { return weigh(of.fused(approximation)); }, 3e-2F);
    }
}

// Gradients of the leaves that are left, for each part that may be frozen.
TEST(FeedForward, FrozenPartsLeaveTheOtherGradients) {
  for (unsigned frozen = 1; frozen < 31; ++frozen) {
    Block of = block(true);
    Tensor* const parts[] = {&of.x, &of.weights.up_weight, &of.weights.up_bias, &of.weights.down_weight,
                             &of.weights.down_bias};
    std::vector<Tensor> left;
    for (unsigned part = 0; part < 5; ++part) {
      if ((frozen >> part & 1U) != 0)
        *parts[part] = detach(*parts[part]);
      else
        left.push_back(*parts[part]);
    }
    const auto run = [&](const Tensor& y) {
      for (const Tensor& leaf : left) clear_grad(leaf);
      weigh(y).backward();
      std::vector<std::vector<float>> all;
      for (const Tensor& leaf : left)
        all.emplace_back(grad(leaf).span<float>().begin(), grad(leaf).span<float>().end());
      return all;
    };
    EXPECT_EQ(run(of.fused(GeluApproximation::kTanh)), run(of.apart(GeluApproximation::kTanh))) << frozen;
  }
}

TEST(FeedForward, ComputesIn16BitsUnderAutoCast) {
  const Block of = block(true);
  Tensor y, apart;
  {
    const AutoCast half(DType::kBFloat16);
    y = of.fused(GeluApproximation::kTanh), apart = of.apart(GeluApproximation::kTanh);
  }
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  const auto expect_near = [](std::span<const float> actual, std::span<const float> expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], 0.02F * std::abs(expected[i]) + 2e-3F) << i;
  };
  expect_near(cast(y, DType::kFloat32).span<float>(), cast(apart, DType::kFloat32).span<float>());
  const auto together = gradients(of, cast(y, DType::kFloat32)), separate = gradients(of, cast(apart, DType::kFloat32));
  for (std::size_t leaf = 0; leaf < together.size(); ++leaf) expect_near(together[leaf], separate[leaf]);
}

TEST(FeedForward, OfNoRows) {
  Block of = block(true);
  of.x = random_leaf({0, 5});
  const Tensor y = of.fused(GeluApproximation::kNone);
  EXPECT_EQ(y.shape(), (Shape{0, 4}));
  weigh(y).backward();
  EXPECT_THAT(grad(of.weights.up_weight).span<float>(), ::testing::Each(0));
}

TEST(FeedForward, NamesTheWeightThatDoesNotFit) {
  Block of = block(true);
  const FeedForwardWeights good = of.weights;
  of.weights.down_weight = random_leaf({4, 7});
  EXPECT_THAT(refusal([&] { of.fused(GeluApproximation::kNone); }),
              HasSubstr("feed_forward: down_weight (4, 7) expects 7 features, but gelu's result (6, 8) has 8"));
  of.weights = good, of.weights.up_bias = random_leaf({7});
  EXPECT_THAT(refusal([&] { of.fused(GeluApproximation::kNone); }),
              HasSubstr("feed_forward: up_bias (7) does not match up_weight (8, 5)"));
  of.weights = good, of.weights.up_weight = Tensor();
  EXPECT_THAT(refusal([&] { of.fused(GeluApproximation::kNone); }), HasSubstr("feed_forward: up_weight (O, I)"));
}

}  // namespace
}  // namespace lockstep
