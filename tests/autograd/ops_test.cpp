// Every differentiable operator compared with finite differences, and its errors.
#include "lockstep/autograd/ops.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/autograd/gradient_check.h"
#include "tests/autograd/refusal.h"

namespace lockstep {
namespace {

struct ConvCase {
  const char* name;
  Shape x, weight;
  Conv2dOptions options;
};

class Conv2dGradient : public ::testing::TestWithParam<ConvCase> {};

TEST_P(Conv2dGradient, AgreesWithFiniteDifferences) {
  manual_seed(1);
  const ConvCase& c = GetParam();
  const Tensor x = random_leaf(c.x), weight = random_leaf(c.weight), bias = random_leaf({c.weight[0]});
  // Linear in each argument: a large step has only rounding errors.
  check_gradients(
      {x, weight, bias}, [&] { return weigh(conv2d(x, weight, bias, c.options)); }, 0.1f);
  check_gradients(
      {x, weight}, [&] { return weigh(conv2d(x, weight, Tensor(), c.options)); }, 0.1f);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Conv2dGradient,
    ::testing::Values(ConvCase{"plain", {2, 6, 5, 3}, {4, 3, 3, 3}, {}},
                      ConvCase{"padded", {2, 6, 7, 2}, {3, 5, 5, 2}, {.padding = Padding::all(2)}},
                      ConvCase{"strided_same", {1, 7, 8, 3}, {2, 3, 4, 3}, {.stride = {2, 3}, .padding = Same{}}},
                      ConvCase{
                          "uneven", {1, 5, 6, 1}, {1, 2, 1, 1}, {.stride = {1, 2}, .padding = Padding{1, 0, 0, 2}}},
                      ConvCase{"pointwise", {3, 2, 2, 5}, {4, 1, 1, 5}, {}}),
    [](const auto& test) { return test.param.name; });

TEST(Gradients, Conv2dWithFusedReLU) {
  manual_seed(2);
  const Tensor x = spaced_leaf({2, 4, 4, 2}, 1), weight = spaced_leaf({3, 1, 1, 2}, 2);
  const Conv2dOptions fused{.activation = Activation::kReLU};
  check_gradients(
      {x, weight}, [&] { return weigh(conv2d(x, weight, Tensor(), fused)); }, 1e-3f, 2e-2);
  const NoGrad no_grad;
  const Tensor together = conv2d(x, weight, Tensor(), fused), apart = relu(conv2d(x, weight, Tensor()));
  for (std::int64_t i = 0; i < together.count(); ++i)
    EXPECT_FLOAT_EQ(together.data<float>()[i], apart.data<float>()[i]);
}

TEST(Gradients, Linear) {
  manual_seed(3);
  const Tensor x = random_leaf({5, 7}), weight = random_leaf({3, 7}), bias = random_leaf({3});
  check_gradients(
      {x, weight, bias}, [&] { return weigh(linear(x, weight, bias)); }, 0.1f);
  const Tensor far_bias = random_leaf({3}, 3, 4);  // keeps most results away from ReLU's kink
  check_gradients(
      {x, weight, far_bias}, [&] { return weigh(linear(x, weight, far_bias, Activation::kReLU)); }, 1e-3f, 2e-2);
}

TEST(Gradients, MaxPool2d) {
  const Tensor x = spaced_leaf({2, 6, 7, 3}, 5);
  check_gradients(
      {x},
      [&] {
        return weigh(max_pool2d(x, {2, 2}));
      },
      1e-3f);
  check_gradients(
      {x},
      [&] {
        return weigh(max_pool2d(x, {3, 3}, {.stride = {2, 2}, .padding = Padding::all(1)}));
      },
      1e-3f);
  check_gradients(
      {x},
      [&] {
        return weigh(max_pool2d(x, {3, 2}, {.stride = {2, 3}, .padding = Same{}}));
      },
      1e-3f);
}

TEST(Gradients, LocalResponseNorm) {
  manual_seed(4);
  const Tensor x = random_leaf({3, 2, 2, 8});
  check_gradients(
      {x}, [&] { return weigh(local_response_norm(x, {.radius = 2, .bias = 1, .alpha = 0.3f, .beta = 0.75f})); });
  check_gradients({x},
                  [&] { return weigh(local_response_norm(x, {.radius = 4, .bias = 2, .alpha = 0.5f, .beta = 0.6f})); });
  check_gradients(
      {x}, [&] { return weigh(local_response_norm(x, {.radius = 20})); }, 1e-3f);
}

TEST(Gradients, Elementwise) {
  manual_seed(5);
  const Tensor a = spaced_leaf({4, 6}, 6), b = random_leaf({4, 6}), bias = random_leaf({6});
  check_gradients(
      {a}, [&] { return weigh(relu(a)); }, 1e-3f);
  check_gradients(
      {a, b}, [&] { return weigh(a + b); }, 0.1f);
  check_gradients(
      {a}, [&] { return weigh(a + a); }, 0.1f);
  check_gradients(
      {a}, [&] { return weigh(-2.5f * a); }, 0.1f);
  const Tensor factor = Tensor::full({}, -2.5F);
  check_gradients(
      {a}, [&] { return weigh(scale_by(a, factor)); }, 0.1f);
  check_gradients(
      {a, bias}, [&] { return weigh(bias_add(a, bias)); }, 0.1f);
  check_gradients(
      {a},
      [&] {
        return weigh(reshape(a, {2, 3, 4}));
      },
      0.1f);
  check_gradients(
      {a},
      [&] {
        return weigh(flatten(reshape(a, {2, 3, 4})));
      },
      0.1f);
}

TEST(Gradients, Losses) {
  manual_seed(6);
  const Tensor logits = random_leaf({5, 4}, -2, 2);
  const std::array<std::int64_t, 5> wanted = {0, 3, 1, 1, 2};
  const Tensor labels = Tensor::from<std::int64_t>(wanted, {5});
  check_gradients({logits}, [&] { return softmax_cross_entropy(logits, labels); });
  check_gradients({logits}, [&] { return l2_loss(logits); });
  check_gradients({logits}, [&] { return softmax_cross_entropy(logits, labels) + 0.1f * l2_loss(logits); });
}

TEST(Gradients, OneLeafUsedByManyOperators) {
  manual_seed(7);
  const Tensor weight = random_leaf({4, 4}), x = random_leaf({3, 4});
  check_gradients({weight, x}, [&] {
    return weigh(linear(linear(x, weight, Tensor()), weight, Tensor())) + 0.5f * l2_loss(weight);
  });
}

TEST(Gradients, OfNothingAreEmpty) {
  const Tensor x = random_leaf({2, 0}), bias = random_leaf({0});
  (l2_loss(bias_add(x, bias))).backward();
  EXPECT_TRUE(has_grad(x));
  EXPECT_TRUE(has_grad(bias));
  EXPECT_EQ(grad(bias).shape(), (Shape{0}));
  // There are no rows either: the bias's gradient is 0.
  const Tensor none = random_leaf({0, 3}), three = random_leaf({3});
  (l2_loss(bias_add(none, three))).backward();
  const Tensor of_three = grad(three);
  for (const float value : of_three.span<float>()) EXPECT_EQ(value, 0);
  // The filters are frozen and the bias is trained: that gradient has a separate code path.
  const Tensor image = Tensor::zeros({1, 2, 2, 1}), no_filters = Tensor::zeros({0, 1, 1, 1}),
               no_bias = random_leaf({0});
  (l2_loss(conv2d(image, no_filters, no_bias))).backward();
  EXPECT_TRUE(has_grad(no_bias));
}

TEST(Gradients, Conv2dWithFusedReLUOverThreeByThree) {
  for (const std::int64_t stride : {1, 2}) {
    SCOPED_TRACE("stride " + std::to_string(stride));
    manual_seed(static_cast<std::uint64_t>(stride));
    const Tensor x = random_leaf({2, 7, 6, 3}), weight = random_leaf({4, 3, 3, 3}, -0.2f, 0.2f);
    // Sums are within +-5.4: of four channels, ReLU passes two entirely and blocks two entirely, so that no step
    // crosses its kink.
    const Tensor bias = random_leaf({4});
    for (std::size_t channel = 0; channel < 4; ++channel) bias.span<float>()[channel] = channel % 2 == 0 ? 6.f : -6.f;
    const Conv2dOptions fused{.stride = {stride, stride}, .padding = Padding::all(1), .activation = Activation::kReLU};
    const Conv2dOptions bare{.stride = {stride, stride}, .padding = Padding::all(1)};
    check_gradients(
        {x, weight, bias}, [&] { return weigh(conv2d(x, weight, bias, fused)); }, 1e-2f);
    const NoGrad no_grad;
    const Tensor together = conv2d(x, weight, bias, fused), apart = relu(conv2d(x, weight, bias, bare));
    std::int64_t stopped = 0;
    for (std::int64_t i = 0; i < together.count(); ++i) {
      EXPECT_NEAR(together.data<float>()[i], apart.data<float>()[i], 1e-5f);
      stopped += together.data<float>()[i] == 0;
    }
    EXPECT_EQ(stopped, together.count() / 2);
  }
}

TEST(SamePadding, IsTensorFlows) {
  const NoGrad no_grad;
  const Tensor weight = Tensor::full({1, 3, 3, 1}, 1);
  const auto out = [&](std::int64_t size, std::int64_t stride) {
    return conv2d(Tensor::full({1, size, size, 1}, 1), weight, Tensor(),
                  {.stride = {stride, stride}, .padding = Same{}});
  };
  EXPECT_EQ(out(5, 1).shape(), (Shape{1, 5, 5, 1}));
  EXPECT_EQ(out(5, 2).shape(), (Shape{1, 3, 3, 1}));
  EXPECT_EQ(out(6, 2).shape(), (Shape{1, 3, 3, 1}));
  // 6 by stride 2: one zero in total, at the end: the first window contains nine ones, the last only four.
  EXPECT_EQ(out(6, 2).data<float>()[0], 9);
  EXPECT_EQ(out(6, 2).data<float>()[8], 4);
  // A stride larger than the window: nothing is padded.
  EXPECT_EQ(out(8, 4).shape(), (Shape{1, 2, 2, 1}));
}

TEST(Refusals, NameTheOperatorAndWhatCame) {
  const Tensor image = Tensor::zeros({1, 4, 4, 3}), weight = Tensor::zeros({2, 3, 3, 5}), row = Tensor::zeros({2, 3});
  EXPECT_NE(refusal([&] { conv2d(image, weight, Tensor()); }).find("conv2d: weight (2, 3, 3, 5) expects 5 channels"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              conv2d(image, Tensor::zeros({2, 9, 3, 3}), Tensor());
            }).find("does not fit"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              linear(row, Tensor::zeros({4, 5}), Tensor());
            }).find("linear: weight (4, 5) expects 5 features"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              max_pool2d(row, {2, 2});
            }).find("max_pool2d: x (N, H, W, C) must have 4 dimensions"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              max_pool2d(image, {2, 2}, {.padding = Padding::all(2)});
            }).find("padding"),
            std::string::npos);
  EXPECT_NE(refusal([&] { add(row, image); }).find("add: shapes"), std::string::npos);
  EXPECT_NE(refusal([&] { relu(Tensor()); }).find("undefined"), std::string::npos);
  const std::array<std::int64_t, 2> outside = {0, 3};
  EXPECT_NE(refusal([&] {
              softmax_cross_entropy(row, Tensor::from<std::int64_t>(outside, {2}));
            }).find("label 3 in row 1 is outside 0..2"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
