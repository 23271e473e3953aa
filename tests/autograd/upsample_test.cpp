// Upsampling, adaptive pooling, borders and dropped channels: values by hand, finite differences, errors.
#include "lockstep/autograd/upsample.h"

#include <gmock/gmock.h>

#include <limits>

#include "lockstep/autograd/dropout.h"
#include "lockstep/autograd/image_padding.h"
#include "lockstep/nn/upsample.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor images(const Shape& shape, const std::vector<float>& values) {
  return Tensor::from(std::span<const float>(values), shape);
}

TEST(Upsample, RepeatsTheNearestPixel) {
  const Tensor x = images({1, 2, 2, 1}, {1, 2, 3, 4});
  EXPECT_THAT(upsample(x, {.size = {2, 4}}).span<float>(), ElementsAre(1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(upsample(x, {.scale = {1, 1.5}}).span<float>(), ElementsAre(1, 1, 2, 3, 3, 4));
  EXPECT_THAT(upsample(x, {.size = 1}).span<float>(), ElementsAre(1));
}

TEST(Upsample, InterpolatesLinearly) {
  const Tensor x = images({1, 1, 2, 1}, {0, 4});
  UpsampleOptions options{.size = {1, 4}, .mode = UpsampleMode::kBilinear};
  EXPECT_THAT(upsample(x, options).span<float>(), ElementsAre(0, 1, 3, 4));
  options.align_corners = true, options.size = {1, 5};
  EXPECT_THAT(upsample(x, options).span<float>(), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Upsample, AgreesWithFiniteDifferences) {
  manual_seed(1);
  for (const Size2 size : {Size2{7, 9}, Size2{2, 3}, Size2{5, 1}}) {
    const Tensor x = random_leaf({2, 4, 5, 3});
    check_gradients({x}, [&] { return weigh(upsample(x, {.size = size})); });
    for (const bool align_corners : {false, true})
      check_gradients({x}, [&] {
        return weigh(upsample(x, {.size = size, .mode = UpsampleMode::kBilinear, .align_corners = align_corners}));
      });
  }
}

// The rows and columns of PyTorch's rule: from floor(i in / out) to ceil((i + 1) in / out).
Tensor pooled_by_hand(const Tensor& x, Size2 size, bool is_maximum) {
  const Shape& in = x.shape();
  const Tensor y = Tensor::zeros({in[0], size[0], size[1], in[3]});
  for (std::int64_t at = 0; at < y.count(); ++at) {
    const std::int64_t c = at % in[3], j = at / in[3] % size[1], i = at / in[3] / size[1] % size[0],
                       n = at / in[3] / size[1] / size[0];
    double sum = 0, largest = -std::numeric_limits<double>::infinity(), count = 0;
    for (std::int64_t row = i * in[1] / size[0]; row < ((i + 1) * in[1] + size[0] - 1) / size[0]; ++row)
      for (std::int64_t column = j * in[2] / size[1]; column < ((j + 1) * in[2] + size[1] - 1) / size[1]; ++column) {
        const double value = x.data<float>()[((n * in[1] + row) * in[2] + column) * in[3] + c];
        sum += value, largest = std::max(largest, value), ++count;
      }
    y.data<float>()[at] = static_cast<float>(is_maximum ? largest : sum / count);
  }
  return y;
}

TEST(AdaptivePooling, FollowsItsWindows) {
  manual_seed(2);
  const NoGrad no_grad;
  const Tensor x = random_leaf({2, 7, 10, 3});
  for (const Size2 size : {Size2{3, 4}, Size2{7, 5}, Size2{1, 1}, Size2{9, 13}, Size2{7, 10}}) {
    SCOPED_TRACE(size.height);
    const Tensor mean = adaptive_avg_pool2d(x, size), largest = adaptive_max_pool2d(x, size);
    const Tensor expected = pooled_by_hand(x, size, false), expected_largest = pooled_by_hand(x, size, true);
    ASSERT_EQ(mean.shape(), expected.shape());
    ASSERT_EQ(largest.shape(), expected.shape());
    for (std::int64_t i = 0; i < mean.count(); ++i) {
      EXPECT_NEAR(mean.data<float>()[i], expected.data<float>()[i], 1e-6F);
      EXPECT_EQ(largest.data<float>()[i], expected_largest.data<float>()[i]);
    }
  }
}

TEST(AdaptivePooling, AgreesWithFiniteDifferences) {
  manual_seed(3);
  for (const Size2 size : {Size2{3, 4}, Size2{7, 5}, Size2{9, 13}}) {
    const Tensor x = random_leaf({2, 7, 10, 2}), spaced = spaced_leaf({2, 7, 10, 2}, 4);
    check_gradients({x}, [&] { return weigh(adaptive_avg_pool2d(x, size)); });
    check_gradients(
        {spaced}, [&] { return weigh(adaptive_max_pool2d(spaced, size)); }, 1e-3F);
  }
  const Tensor line = random_leaf({2, 7, 3}), spaced = spaced_leaf({2, 7, 3}, 5);
  check_gradients({line}, [&] { return weigh(adaptive_avg_pool1d(line, 3)); });
  check_gradients(
      {spaced}, [&] { return weigh(adaptive_max_pool1d(spaced, 3)); }, 1e-3F);
}

TEST(AdaptivePooling, KeepsInfinitiesInTheirWindows) {
  const Tensor x = Tensor::zeros({1, 5, 1, 1});
  x.data<float>()[0] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(adaptive_avg_pool2d(x, {3, 1}).span<float>(), ElementsAre(std::numeric_limits<float>::infinity(), 0, 0));
}

TEST(ImagePadding, MirrorsRepeatsOrFillsWithZeros) {
  const Tensor x = images({1, 4, 1}, {1, 2, 3, 4});
  EXPECT_THAT(pad1d(x, {2, 1}, PaddingMode::kReflect).span<float>(), ElementsAre(3, 2, 1, 2, 3, 4, 3));
  EXPECT_THAT(pad1d(x, {2, 1}, PaddingMode::kReplicate).span<float>(), ElementsAre(1, 1, 1, 2, 3, 4, 4));
  EXPECT_THAT(pad1d(x, {2, 1}).span<float>(), ElementsAre(0, 0, 1, 2, 3, 4, 0));
  const Tensor image = images({1, 2, 2, 1}, {1, 2, 3, 4});
  EXPECT_THAT(pad2d(image, {1, 0, 0, 1}, PaddingMode::kReflect).span<float>(), ElementsAre(3, 4, 3, 1, 2, 1, 3, 4, 3));
}

TEST(ImagePadding, AgreesWithFiniteDifferences) {
  manual_seed(4);
  const Tensor x = random_leaf({2, 4, 5, 3});
  for (const PaddingMode mode : {PaddingMode::kZeros, PaddingMode::kReflect, PaddingMode::kReplicate})
    for (const Padding& padding : {Padding{1, 2, 3, 0}, Padding{0, 4, 0, 4}})
      check_gradients({x}, [&] { return weigh(pad2d(x, padding, mode)); });
}

TEST(DropoutOfChannels, DropsWholeChannels) {
  manual_seed(5);
  const Tensor x = Tensor::full({4, 3, 2, 50}, 1);
  require_grad(x);
  const Tensor y = dropout_channels(x, 0.25F);
  int dropped = 0;
  for (std::int64_t n = 0; n < 4; ++n)
    for (std::int64_t c = 0; c < 50; ++c) {
      const float first = y.data<float>()[n * 300 + c];
      EXPECT_TRUE(first == 0 || first == 1 / 0.75F);
      dropped += first == 0 ? 1 : 0;
      for (std::int64_t pixel = 1; pixel < 6; ++pixel)
        EXPECT_EQ(y.data<float>()[n * 300 + pixel * 50 + c], first) << n << ", " << c;
    }
  EXPECT_GT(dropped, 20);
  EXPECT_LT(dropped, 90);
  sum(y).backward();
  for (std::int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(grad(x).data<float>()[i], y.data<float>()[i]);
  EXPECT_TRUE(dropout_channels(x, 0.25F, false).is_same(x));
}

TEST(ImageLayers, SayWhatTheyRefuse) {
  const Tensor x = Tensor::zeros({1, 2, 3, 4});
  EXPECT_THAT(message_of([&] { upsample(x, {}); }), HasSubstr("upsample: expected either a size or a scale, got none"));
  EXPECT_THAT(message_of([&] { upsample(x, {.size = 2, .scale = 2}); }), HasSubstr("got both"));
  EXPECT_THAT(message_of([&] { upsample(x, {.scale = 0.2}); }),
              HasSubstr("upsample: the result must have at least 1 x 1 pixels, got 0 x 0"));
  EXPECT_THAT(message_of([&] { upsample(x, {.scale = -1}); }),
              HasSubstr("the scale must be positive and finite, got -1"));
  EXPECT_THAT(message_of([&] { upsample(x, {.size = -2}); }), HasSubstr("got -2 x -2"));
  EXPECT_THAT(message_of([&] { upsample(x, {.size = 2, .align_corners = true}); }),
              HasSubstr("align_corners is for the bilinear mode"));
  EXPECT_THAT(message_of([&] {
                adaptive_avg_pool2d(x, {0, 1});
              }),
              HasSubstr("adaptive_avg_pool2d: the result must have at least 1 x 1 pixels, got 0 x 1"));
  EXPECT_THAT(message_of([&] {
                adaptive_max_pool2d(Tensor::zeros({1, 0, 3, 4}), 1);
              }),
              HasSubstr("adaptive_max_pool2d: x (1, 0, 3, 4) has no pixels"));
  EXPECT_THAT(message_of([] { nn::AdaptiveAvgPool1d(0); }),
              HasSubstr("AdaptiveAvgPool1d: every size must be positive, got 0"));
  EXPECT_THAT(message_of([&] {
                pad2d(x, {0, 3}, PaddingMode::kReflect);
              }),
              HasSubstr("pad2d: a reflection of 3 pixels needs an image that is larger, got 3"));
  EXPECT_THAT(message_of([&] { pad2d(x, -1); }), HasSubstr("pad2d: the padding must not be negative, got -1 and -1"));
  EXPECT_THAT(message_of([&] {
                pad1d(Tensor::zeros({1, 0, 2}), 1, PaddingMode::kReplicate);
              }),
              HasSubstr("pad1d: an empty image has no pixels to replicate"));
  EXPECT_THAT(message_of([&] { dropout_channels(x, 1); }), HasSubstr("dropout_channels: p must be in [0, 1), got 1"));
}

}  // namespace
}  // namespace lockstep
