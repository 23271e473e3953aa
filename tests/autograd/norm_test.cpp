// Layer norm and RMS norm: formulas, finite differences, 16 bits, errors.
#include "lockstep/autograd/normalization.h"

#include <gmock/gmock.h>

#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// The formula in double, over rows of `width`.
std::vector<double> expected_norm(const Tensor& x, std::int64_t width, const float* weight, const float* bias,
                                  bool centred, double eps) {
  std::vector<double> y;
  for (std::int64_t row = 0; row < x.count(); row += width) {
    const float* const values = x.data<float>() + row;
    double mean = 0, square = 0;
    for (std::int64_t c = 0; c < width; ++c) mean += centred ? values[c] / static_cast<double>(width) : 0;
    for (std::int64_t c = 0; c < width; ++c)
      square += (values[c] - mean) * (values[c] - mean) / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c)
      y.push_back((values[c] - mean) / std::sqrt(square + eps) * (weight != nullptr ? weight[c] : 1) +
                  (bias != nullptr ? bias[c] : 0));
  }
  return y;
}

void expect_near(const Tensor& got, const std::vector<double>& expected, double tolerance) {
  const Tensor values = cast(got, DType::kFloat32);
  ASSERT_EQ(static_cast<std::size_t>(values.count()), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values.data<float>()[i], expected[i], tolerance) << "element " << i;
}

TEST(LayerNorm, FollowsItsFormula) {
  manual_seed(1);
  for (const Shape& shape : {Shape{3, 1}, Shape{2, 3, 5}, Shape{4, 16}, Shape{2, 70}, Shape{1, 257}}) {
    const std::int64_t width = shape[shape.dims() - 1];
    const Tensor x = random_leaf(shape, 1, 3), weight = random_leaf({width}), bias = random_leaf({width});
    expect_near(layer_norm(x, {width}, weight, bias),
                expected_norm(x, width, weight.data<float>(), bias.data<float>(), true, 1e-5), 2e-5);
    expect_near(layer_norm(x, {width}, {}, {}, 0.1F), expected_norm(x, width, nullptr, nullptr, true, 0.1F), 2e-5);
    expect_near(rms_norm(x, {width}, weight), expected_norm(x, width, weight.data<float>(), nullptr, false, 1e-6),
                2e-5);
  }
}

TEST(LayerNorm, MayGoOverSeveralDimensions) {
  manual_seed(2);
  const Tensor x = random_leaf({2, 3, 4}), weight = random_leaf({3, 4}), bias = random_leaf({3, 4});
  expect_near(layer_norm(x, {3, 4}, weight, bias),
              expected_norm(x, 12, weight.data<float>(), bias.data<float>(), true, 1e-5), 1e-5);
  expect_near(layer_norm(x, {2, 3, 4}), expected_norm(x, 24, nullptr, nullptr, true, 1e-5), 1e-5);
}

TEST(LayerNorm, AgreesWithFiniteDifferences) {
  manual_seed(3);
  for (const std::int64_t width : {5, 16, 37}) {
    const Tensor x = random_leaf({2, 3, width}), weight = random_leaf({width}, 0.5F, 2), bias = random_leaf({width});
    check_gradients({x, weight, bias}, [&] { return weigh(layer_norm(x, {width}, weight, bias)); });
    check_gradients({x}, [&] { return weigh(layer_norm(x, {width})); });
    check_gradients({x, weight}, [&] { return weigh(layer_norm(x, {width}, weight)); });
    check_gradients({x, weight}, [&] { return weigh(rms_norm(x, {width}, weight)); });
    check_gradients({x}, [&] { return weigh(rms_norm(x, {width})); });
  }
  // Several blocks of rows.
  const Tensor rows = random_leaf({150, 3}), weight = random_leaf({3}, 1, 2), bias = random_leaf({3});
  check_gradients({rows, weight, bias}, [&] { return weigh(layer_norm(rows, {3}, weight, bias, 0.1F)); });
}

TEST(LayerNorm, AddsToAGradientThatIsThere) {
  manual_seed(4);
  const Tensor x = random_leaf({3, 8}), weight = random_leaf({8}), bias = random_leaf({8});
  check_gradients({x, weight, bias}, [&] {
    return weigh(
        add(layer_norm(x, {8}, weight, bias), layer_norm(layer_norm(x, {8}, weight, bias), {8}, weight, bias)));
  });
}

// x (N, P, C) in double, group by group.
std::vector<double> expected_groups(const Tensor& x, std::int64_t pixels, std::int64_t groups, const Tensor& weight,
                                    const Tensor& bias) {
  const std::int64_t channels = x.shape()[x.shape().dims() - 1], width = channels / groups, samples = x.shape()[0];
  std::vector<double> y(static_cast<std::size_t>(x.count()));
  for (std::int64_t n = 0; n < samples; ++n)
    for (std::int64_t group = 0; group < groups; ++group) {
      double mean = 0, square = 0;
      const auto for_each = [&](const auto& visit) {
        for (std::int64_t pixel = 0; pixel < pixels; ++pixel)
          for (std::int64_t c = group * width; c < (group + 1) * width; ++c)
            visit((n * pixels + pixel) * channels + c, c);
      };
      const auto count = static_cast<double>(pixels * width);
      for_each([&](std::int64_t i, std::int64_t) { mean += x.data<float>()[i] / count; });
      for_each([&](std::int64_t i, std::int64_t) { square += std::pow(x.data<float>()[i] - mean, 2) / count; });
      for_each([&](std::int64_t i, std::int64_t c) {
        y[static_cast<std::size_t>(i)] =
            (x.data<float>()[i] - mean) / std::sqrt(square + 1e-5) * weight.data<float>()[c] + bias.data<float>()[c];
      });
    }
  return y;
}

TEST(GroupNorm, FollowsItsFormula) {
  manual_seed(6);
  for (const Shape& shape : {Shape{2, 3, 4, 6}, Shape{1, 12, 11, 24}, Shape{3, 12}})
    for (const std::int64_t groups : {1, 2, 3, 6}) {
      const std::int64_t channels = shape[shape.dims() - 1], pixels = shape.count() / shape[0] / channels;
      const Tensor x = random_leaf(shape, 1, 3), weight = random_leaf({channels}), bias = random_leaf({channels});
      expect_near(group_norm(x, groups, weight, bias), expected_groups(x, pixels, groups, weight, bias), 2e-5);
    }
}

TEST(GroupNorm, AgreesWithFiniteDifferences) {
  manual_seed(7);
  for (const std::int64_t groups : {1, 2, 6}) {
    const Tensor x = random_leaf({2, 3, 4, 6}), weight = random_leaf({6}, 0.5F, 2), bias = random_leaf({6});
    check_gradients({x, weight, bias}, [&] { return weigh(group_norm(x, groups, weight, bias)); });
    check_gradients({x}, [&] { return weigh(add(group_norm(x, groups), group_norm(x, groups))); });
  }
  EXPECT_THAT(message_of([] {
                group_norm(Tensor::zeros({1, 2, 6}), 4);
              }),
              HasSubstr("4 groups do not divide the 6 channels of x (1, 2, 6)"));
}

TEST(LayerNorm, TakesHalvesAndKeepsItsParametersInFloat) {
  manual_seed(5);
  const Tensor x = random_leaf({4, 24}), weight = random_leaf({24}, 0.5F, 1), bias = random_leaf({24});
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Tensor half = cast(x, type);
    const Tensor y = layer_norm(half, {24}, weight, bias);
    EXPECT_EQ(y.dtype(), type);
    expect_near(y, expected_norm(cast(half, DType::kFloat32), 24, weight.data<float>(), bias.data<float>(), true, 1e-5),
                0.02);
    for (const Tensor& leaf : {x, weight, bias}) clear_grad(leaf);
    weigh(cast(y, DType::kFloat32)).backward();
    EXPECT_EQ(grad(weight).dtype(), DType::kFloat32);
    EXPECT_TRUE(has_grad(x));
  }
}

std::vector<float> floats_in(const Tensor& x) {
  const Tensor wide = cast(x, DType::kFloat32);
  return {wide.span<float>().begin(), wide.span<float>().end()};
}

// Result, sum, and all gradients have the bits of the two calls.
TEST(AddLayerNorm, IsTheTwoCallsThatItReplaces) {
  manual_seed(7);
  for (const DType type : {DType::kFloat32, DType::kBFloat16})
    for (const std::int64_t width : {1, 5, 64, 1100}) {
      const Tensor a = random_leaf({3, 2, width}), b = random_leaf({3, 2, width}), weight = random_leaf({width}),
                   bias = random_leaf({width});
      const auto run = [&](bool together) {
        for (const Tensor& each : {a, b, weight, bias}) clear_grad(each);
        const Tensor left = cast(a, type), right = cast(b, type);
        Tensor sum, y;
        if (together) {
          std::tie(sum, y) = add_layer_norm(left, right, {width}, weight, bias);
        } else {
          sum = left + right;
          y = layer_norm(sum, {width}, weight, bias);
        }
        weigh(cast(y, DType::kFloat32) * cast(sum, DType::kFloat32)).backward();
        std::vector<std::vector<float>> all = {floats_in(sum), floats_in(y)};
        for (const Tensor& each : {a, b, weight, bias}) all.push_back(floats_in(grad(each)));
        return all;
      };
      EXPECT_EQ(run(true), run(false)) << name_of(type) << ", " << width;
    }
}

TEST(AddLayerNorm, OfDifferentShapesOrTypesIsTheTwoCalls) {
  manual_seed(8);
  const Tensor a = random_leaf({2, 3, 4}), row = random_leaf({4});
  const auto [sum, y] = add_layer_norm(a, row, {4});
  EXPECT_EQ(floats_in(sum), floats_in(a + row));
  EXPECT_EQ(floats_in(y), floats_in(layer_norm(a + row, {4})));
  EXPECT_THAT(message_of([&] { add_layer_norm(a, a, {3}); }),
              HasSubstr("add_layer_norm: the last dimensions of x must be (3)"));
}

TEST(LayerNorm, OfNoRowsIsEmptyAndGivesZeroGradients) {
  const Tensor x = random_leaf({0, 4}), weight = random_leaf({4}), bias = random_leaf({4});
  const Tensor y = layer_norm(x, {4}, weight, bias);
  EXPECT_EQ(y.shape(), (Shape{0, 4}));
  weigh(y).backward();
  EXPECT_THAT(grad(weight).span<float>(), ::testing::Each(0));
  EXPECT_THAT(grad(bias).span<float>(), ::testing::Each(0));
}

TEST(LayerNorm, SaysWhatItRefuses) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(message_of([&] { layer_norm(x, {4}); }),
              HasSubstr("layer_norm: the last dimensions of x must be (4), got x (2, 3)"));
  EXPECT_THAT(message_of([&] { layer_norm(x, {3}, Tensor::zeros({2})); }),
              HasSubstr("layer_norm: weight (3) expected, got (2)"));
  EXPECT_THAT(message_of([&] { layer_norm(x, {3}, {}, Tensor::zeros({4})); }),
              HasSubstr("layer_norm: bias (3) expected, got (4)"));
  EXPECT_THAT(message_of([&] { rms_norm(x, {3}, {}, -1); }), HasSubstr("rms_norm: eps must not be negative, got -1"));
  EXPECT_THAT(message_of([&] { rms_norm({}, {3}); }), HasSubstr("rms_norm: x is undefined"));
}

}  // namespace
}  // namespace lockstep
