// Convolutions in groups and in one dimension, compared with others and with finite differences, and their errors.
// Plain ones are in ops_test.cpp.
#include "lockstep/autograd/convolution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "lockstep/nn/layers.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {
namespace {

// The channels [first, first + count) of the last dimension.
Tensor channels_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  const Shape& s = x.shape();
  const Tensor part = Tensor::empty({s[0], s[1], s[2], count});
  const std::int64_t pixels = s[0] * s[1] * s[2];
  for (std::int64_t p = 0; p < pixels; ++p)
    for (std::int64_t c = 0; c < count; ++c) part.data<float>()[p * count + c] = x.data<float>()[p * s[3] + first + c];
  return part;
}

TEST(GroupedConv2d, IsAConvolutionOfEachRangeOfChannels) {
  const NoGrad no_grad;
  manual_seed(1);
  const std::int64_t groups = 3, seen = 2, filters = 4;
  const Tensor x = random_leaf({2, 5, 6, groups * seen}), weight = random_leaf({groups * filters, 3, 2, seen});
  const Tensor y = conv2d(x, weight, Tensor(), {.stride = {2, 1}, .padding = Padding::all(1), .groups = groups});
  for (std::int64_t g = 0; g < groups; ++g) {
    const Tensor of_group = Tensor::empty({filters, 3, 2, seen});
    const std::int64_t size = of_group.count();
    std::copy_n(weight.data<float>() + g * size, size, of_group.data<float>());
    const Tensor expected =
        conv2d(channels_of(x, g * seen, seen), of_group, Tensor(), {.stride = {2, 1}, .padding = Padding::all(1)});
    const Tensor actual = channels_of(y, g * filters, filters);
    ASSERT_EQ(actual.shape(), expected.shape());
    for (std::int64_t i = 0; i < actual.count(); ++i)
      EXPECT_NEAR(actual.data<float>()[i], expected.data<float>()[i], 1e-5f);
  }
}

TEST(GroupedConv2d, AgreesWithFiniteDifferences) {
  manual_seed(2);
  struct Case {
    std::int64_t groups, channels, filters;
  };
  for (const Case& c : {Case{2, 6, 4}, Case{3, 3, 3}, Case{5, 5, 10}}) {
    SCOPED_TRACE(c.groups);
    const Tensor x = random_leaf({2, 6, 5, c.channels}), weight = random_leaf({c.filters, 3, 3, c.channels / c.groups});
    const Tensor bias = random_leaf({c.filters});
    check_gradients(
        {x, weight, bias},
        [&] { return weigh(conv2d(x, weight, bias, {.padding = Padding::all(1), .groups = c.groups})); }, 0.1f);
    check_gradients(
        {x, weight},
        [&] {
          return weigh(conv2d(x, weight, Tensor(), {.stride = {2, 2}, .padding = Same{}, .groups = c.groups}));
        },
        0.1f);
  }
}

TEST(DepthwiseConv2d, WithFusedReLU) {
  manual_seed(3);
  const Tensor x = random_leaf({2, 5, 4, 4}), weight = random_leaf({4, 3, 3, 1}, -0.2f, 0.2f),
               bias = Tensor::zeros({4});
  for (std::size_t c = 0; c < 4; ++c)
    bias.span<float>()[c] = c % 2 == 0 ? 3.f : -3.f;  // sums are within +-1.8: no step crosses the kink
  const Conv2dOptions options{.padding = Padding::all(1), .activation = Activation::kReLU, .groups = 4};
  check_gradients({x, weight}, [&] { return weigh(conv2d(x, weight, bias, options)); });
}

TEST(Conv1d, IsConv2dOfHeightOne) {
  manual_seed(4);
  const Tensor x = random_leaf({2, 9, 4}), weight = random_leaf({6, 3, 2}), bias = random_leaf({6});
  const Conv1dOptions options{.stride = 2, .padding = Padding1d{1, 0}, .groups = 2};
  const Tensor y = conv1d(x, weight, bias, options);
  const Tensor images = conv2d(reshape(x, {2, 1, 9, 4}), reshape(weight, {6, 1, 3, 2}), bias,
                               {.stride = {1, 2}, .padding = Padding{0, 1, 0, 0}, .groups = 2});
  ASSERT_EQ(y.shape(), (Shape{2, 4, 6}));
  for (std::int64_t i = 0; i < y.count(); ++i) EXPECT_EQ(y.data<float>()[i], images.data<float>()[i]);
  check_gradients(
      {x, weight, bias}, [&] { return weigh(conv1d(x, weight, bias, options)); }, 0.1f);
  const Tensor pointwise = random_leaf({2, 1, 4});
  check_gradients(
      {x, pointwise}, [&] { return weigh(conv1d(x, pointwise, Tensor(), {.padding = Same{}})); }, 0.1f);
}

TEST(Conv1d, OfNoSequencesIsEmpty) {
  const Tensor x = random_leaf({0, 5, 3}), weight = random_leaf({2, 3, 3});
  const Tensor y = conv1d(x, weight, Tensor());
  EXPECT_EQ(y.shape(), (Shape{0, 3, 2}));
  l2_loss(y).backward();
  EXPECT_THAT(grad(weight).span<float>(), ::testing::Each(0));
}

template <typename Call> std::string convolution_refusal(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Convolutions, NameWhatTheyRefuse) {
  const Tensor image = Tensor::zeros({1, 4, 4, 6}), sequence = Tensor::zeros({1, 4, 6});
  EXPECT_NE(
      convolution_refusal([&] {
        conv2d(image, Tensor::zeros({4, 3, 3, 2}), Tensor(), {.groups = 4});
      }).find("conv2d: 4 groups must divide the 6 channels of x (1, 4, 4, 6) and the 4 filters of weight (4, 3, 3, 2)"),
      std::string::npos);
  EXPECT_NE(convolution_refusal([&] {
              conv2d(image, Tensor::zeros({4, 3, 3, 6}), Tensor(), {.groups = 2});
            }).find("conv2d: weight (4, 3, 3, 6) expects 12 channels in 2 groups, but x (1, 4, 4, 6) has 6"),
            std::string::npos);
  EXPECT_NE(convolution_refusal([&] {
              conv2d(image, Tensor::zeros({4, 3, 3, 6}), Tensor(), {.groups = 0});
            }).find("0 groups"),
            std::string::npos);
  EXPECT_NE(convolution_refusal([&] {
              conv1d(image, Tensor::zeros({4, 3, 6}), Tensor());
            }).find("conv1d: x (N, L, C) must have 3"),
            std::string::npos);
  EXPECT_NE(convolution_refusal([&] {
              conv1d(sequence, Tensor::zeros({4, 3, 5}), Tensor());
            }).find("conv1d: weight (4, 3, 5) expects 5 channels, but x (1, 4, 6) has 6"),
            std::string::npos);
  EXPECT_NE(convolution_refusal([&] {
              nn::Conv2d(6, 4, {3, 3}, {.groups = 4});
            }).find("Conv2d: 4 groups must divide 6 input"),
            std::string::npos);
}

TEST(ConvolutionLayers, HaveGroupsAndOneDimension) {
  const auto text_of = [](const nn::Module& module) {
    std::ostringstream text;
    text << module;
    return text.str();
  };
  nn::Conv2d depthwise(8, 8, {3, 3}, {.padding = Padding::all(1), .bias = false, .groups = 8});
  EXPECT_EQ(depthwise.weight.shape(), (Shape{8, 3, 3, 1}));
  EXPECT_EQ(text_of(depthwise), "Conv2d(8, 8, kernel=(3, 3), stride=(1, 1), padding=1, groups=8, bias=false)");
  EXPECT_EQ(depthwise(Tensor::zeros({2, 5, 5, 8})).shape(), (Shape{2, 5, 5, 8}));
  nn::Conv1d conv(4, 6, 3, {.stride = 2, .padding = Padding1d::all(1), .groups = 2});
  EXPECT_EQ(conv.weight.shape(), (Shape{6, 3, 2}));
  EXPECT_EQ(conv.bias.shape(), (Shape{6}));
  EXPECT_EQ(text_of(conv), "Conv1d(4, 6, kernel=3, stride=2, padding=1, groups=2)");
  EXPECT_EQ(conv(Tensor::zeros({2, 9, 4})).shape(), (Shape{2, 5, 6}));
}

}  // namespace
}  // namespace lockstep
