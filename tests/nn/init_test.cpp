// Initialisation: bounds, means and deviations of many values with a fixed seed, compared with the formulas in double
// precision.
#include "lockstep/nn/init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace init = nn::init;
using Fill = std::function<void(const Tensor&)>;

struct Moments {
  double mean = 0, deviation = 0, largest = 0;  // largest: magnitude
};

Moments moments_of(const Tensor& tensor) {
  Moments moments;
  double square = 0;
  for (const float value : tensor.span<float>()) {
    moments.mean += value;
    square += double{value} * value;
    moments.largest = std::max(moments.largest, std::abs(double{value}));
  }
  const auto count = static_cast<double>(tensor.count());
  moments.mean /= count;
  moments.deviation = std::sqrt(square / count - moments.mean * moments.mean);
  return moments;
}

// 96,000 values: their mean deviates by 1/310 of the deviation, the deviation itself by less than that.
const Shape kLinear{240, 400}, kConvolution{96, 5, 4, 50};

Moments filled(const Shape& shape, const Fill& fill) {
  manual_seed(11);
  const Tensor tensor = Tensor::full(shape, 77);
  fill(tensor);
  return moments_of(tensor);
}

void expect_uniform(const Moments& moments, double deviation) {
  const double bound = std::sqrt(3.0) * deviation;
  EXPECT_NEAR(moments.mean, 0, 0.02 * deviation);
  EXPECT_NEAR(moments.deviation, deviation, 0.01 * deviation);
  EXPECT_LE(moments.largest, bound * (1 + 1e-6));
  EXPECT_GT(moments.largest, 0.999 * bound);
}

void expect_normal(const Moments& moments, double deviation) {
  EXPECT_NEAR(moments.mean, 0, 0.02 * deviation);
  EXPECT_NEAR(moments.deviation, deviation, 0.02 * deviation);
  EXPECT_GT(moments.largest, 3.5 * deviation) << "that has no bound";
}

TEST(Init, FansAreOfLinearWeightsAndOfConvolutions) {
  EXPECT_EQ(init::calculate_fans({3, 4}).in, 4);
  EXPECT_EQ(init::calculate_fans({3, 4}).out, 3);
  EXPECT_EQ(init::calculate_fans({64, 5, 3, 16}).in, 5 * 3 * 16);
  EXPECT_EQ(init::calculate_fans({64, 5, 3, 16}).out, 5 * 3 * 64);
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 0}, Shape{0, 2, 2, 3}})
    EXPECT_THAT(message_of([&] { init::calculate_fans(shape); }),
                AllOf(HasSubstr("calculate_fans"), HasSubstr("got " + shape.text())));
}

TEST(Init, GainsAreThoseOfTheFormulas) {
  using nn::Nonlinearity;
  EXPECT_EQ(init::calculate_gain(Nonlinearity::kLinear), 1);
  EXPECT_EQ(init::calculate_gain(Nonlinearity::kSigmoid), 1);
  EXPECT_FLOAT_EQ(init::calculate_gain(Nonlinearity::kTanh), 5.F / 3);
  EXPECT_FLOAT_EQ(init::calculate_gain(Nonlinearity::kReLU), std::sqrt(2.F));
  EXPECT_FLOAT_EQ(init::calculate_gain(Nonlinearity::kLeakyReLU), std::sqrt(2.F / 1.0001F));
  EXPECT_FLOAT_EQ(init::calculate_gain(Nonlinearity::kLeakyReLU, 3), std::sqrt(0.2F));
  EXPECT_EQ(init::calculate_gain(Nonlinearity::kSELU), 0.75F);
}

TEST(Init, XavierKeepsBothVariances) {
  for (const Shape& shape : {kLinear, kConvolution}) {
    const init::Fans fans = init::calculate_fans(shape);
    const double deviation = std::sqrt(2.0 / static_cast<double>(fans.in + fans.out));
    expect_uniform(filled(shape, [](const Tensor& weight) { init::xavier_uniform(weight); }), deviation);
    expect_uniform(filled(shape, [](const Tensor& weight) { init::xavier_uniform(weight, 3); }), 3 * deviation);
    expect_normal(filled(shape, [](const Tensor& weight) { init::xavier_normal(weight); }), deviation);
    expect_normal(filled(shape, [](const Tensor& weight) { init::xavier_normal(weight, 0.5F); }), deviation / 2);
  }
}

TEST(Init, KaimingFollowsFanAndNonlinearity) {
  using nn::FanMode, nn::Nonlinearity;
  for (const Shape& shape : {kLinear, kConvolution}) {
    const init::Fans fans = init::calculate_fans(shape);
    const double in = std::sqrt(1.0 / static_cast<double>(fans.in)),
                 out = std::sqrt(1.0 / static_cast<double>(fans.out));
    expect_uniform(filled(shape, [](const Tensor& weight) { init::kaiming_uniform(weight); }), std::sqrt(2.0) * in);
    expect_normal(filled(shape, [](const Tensor& weight) { init::kaiming_normal(weight); }), std::sqrt(2.0) * in);
    expect_uniform(
        filled(shape, [](const Tensor& weight) { init::kaiming_uniform(weight, {.mode = FanMode::kFanOut}); }),
        std::sqrt(2.0) * out);
    expect_normal(filled(shape,
                         [](const Tensor& weight) {
                           init::kaiming_normal(weight,
                                                {.mode = FanMode::kFanOut, .nonlinearity = Nonlinearity::kTanh});
                         }),
                  5.0 / 3 * out);
    // PyTorch's default for its layers: +-1/sqrt(fan in).
    const Moments moments =
        filled(shape, [](const Tensor& weight) { init::kaiming_uniform(weight, {.negative_slope = std::sqrt(5.F)}); });
    expect_uniform(moments, in / std::sqrt(3.0));
  }
}

TEST(Init, TruncatedNormalHasNothingOutsideTwoDeviations) {
  const Moments moments = filled({300, 300}, [](const Tensor& tensor) { init::truncated_normal(tensor, 0, 0.5F); });
  EXPECT_LE(moments.largest, 1 + 1e-6);
  EXPECT_GT(moments.largest, 0.999);
  EXPECT_NEAR(moments.mean, 0, 0.01);
  EXPECT_NEAR(moments.deviation, 0.8796 * 0.5, 0.005);
  EXPECT_NEAR(filled({300, 300}, [](const Tensor& tensor) { init::truncated_normal(tensor, 3, 0.5F); }).mean, 3, 0.01);
}

TEST(Init, ConstantsAndPlainDistributions) {
  const auto constant = filled({7}, [](const Tensor& tensor) { init::constant(tensor, 2.5F); });
  EXPECT_EQ(constant.mean, 2.5);
  EXPECT_EQ(constant.deviation, 0);
  EXPECT_EQ(filled({7}, init::zeros).mean, 0);
  EXPECT_EQ(filled({7}, init::ones).mean, 1);
  const auto uniform = filled(kLinear, [](const Tensor& tensor) { init::uniform(tensor, 2, 6); });
  EXPECT_NEAR(uniform.mean, 4, 0.02);
  EXPECT_NEAR(uniform.deviation, 4 / std::sqrt(12.0), 0.02);
  const auto normal = filled(kLinear, [](const Tensor& tensor) { init::normal(tensor, -1, 2); });
  EXPECT_NEAR(normal.mean, -1, 0.04);
  EXPECT_NEAR(normal.deviation, 2, 0.04);
}

TEST(Init, TheSeedDecidesTheValues) {
  const auto drawn = [](std::uint64_t seed) {
    manual_seed(seed);
    Tensor weight = Tensor::empty({8, 8});
    init::kaiming_normal(weight);
    return weight;
  };
  const auto equal = [](const Tensor& a, const Tensor& b) {
    return std::memcmp(a.data<float>(), b.data<float>(), a.bytes()) == 0;
  };
  EXPECT_TRUE(equal(drawn(1), drawn(1)));
  EXPECT_FALSE(equal(drawn(1), drawn(2)));
}

TEST(Init, RefusesWhatItCannotFill) {
  const Tensor bias = Tensor::full({4}, 7), integers = Tensor::zeros({4, 4}, DType::kInt64);
  EXPECT_THAT(message_of([&] { init::xavier_uniform(bias); }), HasSubstr("got (4)"));
  EXPECT_THAT(message_of([&] { init::kaiming_normal(integers); }),
              AllOf(HasSubstr("kaiming_normal"), HasSubstr("int64 (4, 4)")));
  EXPECT_THAT(message_of([&] { init::ones(Tensor()); }), HasSubstr("undefined"));
  EXPECT_THROW(init::normal(bias, 0, -1), InvalidArgument);
  EXPECT_THROW(init::truncated_normal(bias, 0, NAN), InvalidArgument);
  EXPECT_THROW(init::uniform(bias, 2, 1), InvalidArgument);
  EXPECT_THROW(init::xavier_normal(Tensor::zeros({2, 2}), INFINITY), InvalidArgument);
  EXPECT_EQ(bias.span<float>()[3], 7) << "a refusal changes nothing";
}

}  // namespace
}  // namespace lockstep
