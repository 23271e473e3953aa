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

TEST(FeedForward, FrozenPartsGetNoGradient) {
  Block of = block(true);
  of.x = detach(of.x);
  of.weights.up_weight = detach(of.weights.up_weight), of.weights.up_bias = detach(of.weights.up_bias);
  weigh(of.fused(GeluApproximation::kNone)).backward();
  EXPECT_TRUE(grad(of.weights.down_weight).defined());
  EXPECT_FALSE(requires_grad(of.weights.up_weight));
  Block only_bias = block(true);
  only_bias.weights.down_weight = detach(only_bias.weights.down_weight);
  weigh(only_bias.fused(GeluApproximation::kTanh)).backward();
  EXPECT_TRUE(grad(only_bias.weights.down_bias).defined());
  EXPECT_TRUE(grad(only_bias.x).defined());
}

TEST(FeedForward, ComputesIn16BitsUnderAutoCast) {
  const Block of = block(true);
  const AutoCast half(DType::kBFloat16);
  const Tensor y = of.fused(GeluApproximation::kTanh);
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  const Tensor apart = cast(of.apart(GeluApproximation::kTanh), DType::kFloat32), wide = cast(y, DType::kFloat32);
  for (std::size_t i = 0; i < apart.span<float>().size(); ++i)
    EXPECT_NEAR(wide.span<float>()[i], apart.span<float>()[i], 0.02F * std::abs(apart.span<float>()[i]) + 1e-3F);
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
              HasSubstr("feed_forward: weight (4, 7) expects 7 features"));
  of.weights = good, of.weights.up_bias = random_leaf({7});
  EXPECT_THAT(refusal([&] { of.fused(GeluApproximation::kNone); }),
              HasSubstr("feed_forward: bias (7) does not match weight (8, 5)"));
  of.weights = good, of.weights.up_weight = Tensor();
  EXPECT_THAT(refusal([&] { of.fused(GeluApproximation::kNone); }), HasSubstr("feed_forward: weight (O, I)"));
}

}  // namespace
}  // namespace lockstep
