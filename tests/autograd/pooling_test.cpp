// Pooling, compared with its formula and with finite differences, and its errors.
#include "lockstep/autograd/pooling.h"

#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "lockstep/nn/pooling.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {
namespace {

TEST(AvgPool2d, CountsPaddingOrNot) {
  const std::array<float, 4> values = {1, 2, 3, 6};
  const Tensor x = Tensor::from<float>(values, {1, 2, 2, 1});
  EXPECT_EQ(avg_pool2d(x, {2, 2}).item(), 3);
  const Tensor with = avg_pool2d(x, {2, 2}, {.stride = {2, 2}, .padding = Padding::all(1)});
  const Tensor without =
      avg_pool2d(x, {2, 2}, {.stride = {2, 2}, .padding = Padding::all(1), .count_include_pad = false});
  ASSERT_EQ(with.shape(), (Shape{1, 2, 2, 1}));
  for (std::size_t i = 0; i < 4; ++i) {  // every window contains one pixel and three zeros
    EXPECT_EQ(with.data<float>()[i], values[i] / 4);
    EXPECT_EQ(without.data<float>()[i], values[i]);
  }
}

// 0.1 is not exact in float: sums of a million of them in float32 end at 1.0e5 for 1.0e6 * 0.1F.
TEST(GlobalAvgPool2d, OfLargePlanesIsTheMeanInDouble) {
  for (const Shape& shape :
       {Shape{1, 1024, 1024, 3}, Shape{2, 300, 333, 17}, Shape{1, 200000, 1, 5}, Shape{1, 1, 200000, 64}}) {
    const Tensor x = Tensor::empty(shape);
    const auto values = x.span<float>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.1F + static_cast<float>(i % 101) * 1e-3F;
    const auto channels = static_cast<std::size_t>(shape[-1]),
               plane = values.size() / channels / static_cast<std::size_t>(shape[0]);
    const Tensor means = global_avg_pool2d(x);
    for (std::size_t i = 0; i < means.span<float>().size(); ++i) {
      double sum = 0;
      for (std::size_t pixel = 0; pixel < plane; ++pixel)
        sum += double{values[(i / channels * plane + pixel) * channels + i % channels]};
      const double expected = sum / static_cast<double>(plane);
      EXPECT_NEAR(means.span<float>()[i], expected, 1e-6 * expected) << shape.text() << ", mean " << i;
    }
  }
}

TEST(AvgPool2d, AgreesWithFiniteDifferences) {
  manual_seed(1);
  const Tensor x = random_leaf({2, 6, 7, 3});
  for (const bool counts : {false, true}) {
    check_gradients(
        {x},
        [&] {
          return weigh(avg_pool2d(x, {2, 3}, {.count_include_pad = counts}));
        },
        0.1f);
    check_gradients(
        {x},
        [&] {
          return weigh(
              avg_pool2d(x, {3, 3}, {.stride = {2, 2}, .padding = Padding{1, 0, 1, 2}, .count_include_pad = counts}));
        },
        0.1f);
    check_gradients(
        {x},
        [&] {
          return weigh(avg_pool2d(x, {3, 2}, {.stride = {2, 3}, .padding = Same{}, .count_include_pad = counts}));
        },
        0.1f);
  }
  check_gradients(
      {x},
      [&] {
        return weigh(avg_pool2d(x, {2, 2})) + weigh(avg_pool2d(x, {2, 2}, {.stride = {3, 3}}));
      },
      0.1f);
}

TEST(GlobalAvgPool2d, IsTheMeanOfEachChannel) {
  manual_seed(2);
  const Tensor x = random_leaf({2, 3, 5, 4});
  const Tensor y = global_avg_pool2d(x);
  ASSERT_EQ(y.shape(), (Shape{2, 4}));
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t c = 0; c < 4; ++c) {
      double sum = 0;
      for (std::size_t pixel = 0; pixel < 15; ++pixel) sum += x.data<float>()[(n * 15 + pixel) * 4 + c];
      EXPECT_NEAR(y.data<float>()[n * 4 + c], sum / 15, 1e-6);
    }
  check_gradients(
      {x}, [&] { return weigh(global_avg_pool2d(x)); }, 0.1f);
}

TEST(Pool1d, IsPool2dOfHeightOne) {
  manual_seed(3);
  const Tensor x = spaced_leaf({2, 9, 3}, 4);
  const Tensor image = reshape(x, {2, 1, 9, 3});
  const auto expect_equal = [](const Tensor& sequence, const Tensor& images) {
    ASSERT_EQ(sequence.shape(), (Shape{images.shape()[0], images.shape()[2], images.shape()[3]}));
    for (std::int64_t i = 0; i < sequence.count(); ++i) EXPECT_EQ(sequence.data<float>()[i], images.data<float>()[i]);
  };
  expect_equal(max_pool1d(x, 3), max_pool2d(image, {1, 3}));
  expect_equal(max_pool1d(x, 3, {.stride = 2, .padding = Padding1d{1, 0}}),
               max_pool2d(image, {1, 3}, {.stride = {1, 2}, .padding = Padding{0, 1, 0, 0}}));
  expect_equal(avg_pool1d(x, 4, {.stride = 3, .padding = Same{}, .count_include_pad = false}),
               avg_pool2d(image, {1, 4}, {.stride = {1, 3}, .padding = Same{}, .count_include_pad = false}));
  check_gradients(
      {x}, [&] { return weigh(max_pool1d(x, 3, {.stride = 2, .padding = Padding1d::all(1)})); }, 1e-3f);
  check_gradients(
      {x}, [&] { return weigh(avg_pool1d(x, 3, {.stride = 2, .padding = Padding1d::all(1)})); }, 0.1f);
}

TEST(Pooling, OfNoImagesIsEmpty) {
  const Tensor x = random_leaf({0, 4, 4, 3});
  const Tensor y = avg_pool2d(x, {2, 2});
  EXPECT_EQ(y.shape(), (Shape{0, 2, 2, 3}));
  EXPECT_EQ(global_avg_pool2d(x).shape(), (Shape{0, 3}));
  l2_loss(y).backward();
  EXPECT_TRUE(has_grad(x));
}

template <typename Call> std::string pooling_refusal(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Pooling, NamesWhatItRefuses) {
  const Tensor image = Tensor::zeros({1, 4, 4, 3}), sequence = Tensor::zeros({1, 4, 3});
  EXPECT_NE(pooling_refusal([&] {
              avg_pool2d(sequence, {2, 2});
            }).find("avg_pool2d: x (N, H, W, C) must have 4 dimensions"),
            std::string::npos);
  EXPECT_NE(pooling_refusal([&] {
              avg_pool2d(image, {5, 2});
            }).find("avg_pool2d: the window 5 x 2 does not fit"),
            std::string::npos);
  EXPECT_NE(pooling_refusal([&] {
              avg_pool2d(image, {2, 2}, {.padding = Padding::all(2)});
            }).find("padding must be smaller"),
            std::string::npos);
  EXPECT_NE(pooling_refusal([&] { max_pool1d(image, 2); }).find("max_pool1d: x (N, L, C) must have 3 dimensions"),
            std::string::npos);
  EXPECT_NE(pooling_refusal([&] { avg_pool1d(sequence, 0); }).find("avg_pool1d"), std::string::npos);
  EXPECT_NE(pooling_refusal([&] {
              global_avg_pool2d(Tensor::zeros({1, 0, 2, 3}));
            }).find("global_avg_pool2d"),
            std::string::npos);
}

TEST(PoolingLayers, PrintTheirOptions) {
  const auto text_of = [](const nn::Module& module) {
    std::ostringstream text;
    text << module;
    return text.str();
  };
  EXPECT_EQ(text_of(nn::AvgPool2d({3, 2}, {.padding = Padding::all(1), .count_include_pad = false})),
            "AvgPool2d((3, 2), stride=(3, 2), padding=1, count_include_pad=false)");
  EXPECT_EQ(text_of(nn::GlobalAvgPool2d()), "GlobalAvgPool2d()");
  EXPECT_EQ(text_of(nn::MaxPool1d(3, {.stride = 2, .padding = Padding1d{1, 0}})),
            "MaxPool1d(3, stride=2, padding=(left=1, right=0))");
  EXPECT_EQ(text_of(nn::AvgPool1d(3)), "AvgPool1d(3, stride=3)");
  nn::AvgPool1d pool(2);
  EXPECT_EQ(pool(Tensor::zeros({2, 6, 3})).shape(), (Shape{2, 3, 3}));
}

}  // namespace
}  // namespace lockstep
