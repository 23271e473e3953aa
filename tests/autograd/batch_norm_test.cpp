#include <gmock/gmock.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/error.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

Tensor values_of(std::vector<float> values, const Shape& shape) { return Tensor::from<float>(values, shape); }

TEST(BatchNorm, NormalizesEachChannelByItsOwnStatistics) {
  const Tensor x = values_of({1, 10, 3, 10, 5, 40, 7, 40}, {4, 2});
  const Tensor mean = Tensor::zeros({2}), variance = Tensor::full({2}, 1);
  const Tensor y = batch_norm(x, values_of({1, 2}, {2}), values_of({0, 5}, {2}), mean, variance, {.eps = 0});
  const double deviation = std::sqrt(5.0);  // of 1, 3, 5, 7
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_NEAR(y.span<float>()[2 * row], (2.0 * static_cast<double>(row) - 3) / deviation, 1e-6);
    EXPECT_NEAR(y.span<float>()[2 * row + 1], row < 2 ? 3 : 7, 1e-6);
  }
  // The running statistics move by a tenth; the variance is the unbiased one: 20 / 3 and 900 / 3.
  EXPECT_NEAR(mean.span<float>()[0], 0.4, 1e-6);
  EXPECT_NEAR(mean.span<float>()[1], 2.5, 1e-6);
  EXPECT_NEAR(variance.span<float>()[0], 0.9 + 0.1 * 20 / 3, 1e-5);
  EXPECT_NEAR(variance.span<float>()[1], 0.9 + 30, 1e-4);
}

TEST(BatchNorm, EvaluationReadsTheRunningStatisticsAndLeavesThem) {
  const Tensor mean = values_of({1, -2}, {2}), variance = values_of({4, 9}, {2});
  const Tensor y =
      batch_norm(values_of({3, 1}, {1, 2}), Tensor(), Tensor(), mean, variance, {.training = false, .eps = 0});
  EXPECT_THAT(y.span<float>(), ::testing::ElementsAre(1, 1));
  EXPECT_THAT(mean.span<float>(), ::testing::ElementsAre(1, -2));
  EXPECT_THAT(variance.span<float>(), ::testing::ElementsAre(4, 9));
}

TEST(BatchNorm, ALargeMeanTakesNoDigitsFromTheVariance) {
  std::vector<float> values(3000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 10000 + static_cast<float>(i % 5) - 2;
  const Tensor variance = Tensor::zeros({1});
  batch_norm(values_of(values, {3000, 1}), Tensor(), Tensor(), Tensor::zeros({1}), variance, {.momentum = 1});
  EXPECT_NEAR(variance.span<float>()[0], 2.0 * 3000 / 2999, 1e-5);
}

TEST(BatchNorm, GradientsAgreeWithFiniteDifferences) {
  for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 5, 7}, Shape{3, 2, 2, 16}, Shape{5, 200}})
    for (const bool training : {true, false})
      for (const bool relu : {false, true}) {
        manual_seed(3);
        const std::int64_t channels = shape[shape.dims() - 1];
        const Tensor x = random_leaf(shape, -2, 3), weight = random_leaf({channels}, 0.5F, 1.5F),
                     bias = random_leaf({channels}, 2, 3);
        const Tensor mean = Tensor::full({channels}, 0.3F), variance = Tensor::full({channels}, 1.7F);
        check_gradients({x, weight, bias}, [&] {
          return weigh(batch_norm(x, weight, relu ? bias : Tensor(bias), mean.clone(), variance.clone(),
                                  {.training = training, .relu = relu}));
        });
      }
}

// Another part of the batch, whose loss is a constant.
class OtherPart : public StatisticsExchange {
 public:
  OtherPart(double rows, std::vector<double> means, std::vector<double> variances) : part_({rows}) {
    part_.insert(part_.end(), means.begin(), means.end());
    part_.insert(part_.end(), variances.begin(), variances.end());
  }
  std::vector<double> gather(std::span<const double> own) override {
    std::vector<double> all(own.begin(), own.end());
    all.insert(all.end(), part_.begin(), part_.end());
    return all;
  }
  void add_up(std::span<double>) override {}  // sums of zeros

 private:
  std::vector<double> part_;
};

TEST(BatchNorm, OfAPartHasTheStatisticsOfAllAndTheirGradients) {
  // 1, 3 here and 5, 7, 9 in the other part: mean 5, variance 8, unbiased 10.
  const Tensor mean = Tensor::zeros({1}), variance = Tensor::zeros({1});
  const Tensor y = batch_norm(
      values_of({1, 3}, {2, 1}), Tensor(), Tensor(), mean, variance,
      {.momentum = 1, .eps = 0, .exchange = std::make_shared<OtherPart>(3, std::vector{7.0}, std::vector{8.0 / 3})});
  EXPECT_NEAR(y.span<float>()[0], -4 / std::sqrt(8.0), 1e-6);
  EXPECT_NEAR(y.span<float>()[1], -2 / std::sqrt(8.0), 1e-6);
  EXPECT_EQ(mean.item(), 5);
  EXPECT_EQ(variance.item(), 10);

  for (const bool relu : {false, true}) {
    manual_seed(3);
    const auto exchange = std::make_shared<OtherPart>(5, std::vector{0.2, -0.4, 1.0}, std::vector{2.0, 1.0, 0.5});
    const Tensor x = random_leaf({4, 2, 3}, -2, 3), weight = random_leaf({3}, 0.5F, 1.5F),
                 bias = random_leaf({3}, 2, 3);
    check_gradients({x, weight, bias}, [&] {
      return weigh(batch_norm(x, weight, bias, Tensor(), Tensor(), {.relu = relu, .exchange = exchange}));
    });
    check_gradients(
        {x}, [&] { return weigh(batch_norm(x, Tensor(), Tensor(), Tensor(), Tensor(), {.exchange = exchange})); });
  }
}

TEST(BatchNorm, ReLUPassesNoGradientWhereItClamped) {
  const Tensor x = values_of({-1, 1}, {2, 1});
  require_grad(x);
  batch_norm(x, Tensor(), Tensor(), Tensor::zeros({1}), Tensor::full({1}, 1),
             {.training = false, .eps = 0, .relu = true});
  const Tensor y = batch_norm(x, Tensor(), Tensor(), Tensor::zeros({1}), Tensor::full({1}, 1),
                              {.training = false, .eps = 0, .relu = true});
  EXPECT_THAT(y.span<float>(), ::testing::ElementsAre(0, 1));
  l2_loss(y).backward();
  EXPECT_THAT(grad(x).span<float>(), ::testing::ElementsAre(0, 1));
}

TEST(BatchNorm, AnEmptyBatchIsEmptyInEvaluation) {
  const Tensor y = batch_norm(Tensor::zeros({0, 4, 4, 3}), Tensor(), Tensor(), Tensor::zeros({3}), Tensor::full({3}, 1),
                              {.training = false});
  EXPECT_EQ(y.shape(), (Shape{0, 4, 4, 3}));
}

TEST(BatchNorm, BadInputIsNamed) {
  const Tensor x = Tensor::zeros({4, 3}), mean = Tensor::zeros({3}), two = Tensor::zeros({2});
  EXPECT_THAT(message_of([&] { batch_norm(x, two, Tensor(), mean, mean); }),
              ::testing::HasSubstr("batch_norm: weight (C) (2) does not match the 3 channels of x (4, 3)"));
  EXPECT_THAT(message_of([&] {
                batch_norm(Tensor::zeros({1, 3}), Tensor(), Tensor(), mean, mean);
              }),
              ::testing::HasSubstr("1 values for each channel, but training needs at least 2"));
  EXPECT_THAT(message_of([&] { batch_norm(x, Tensor(), Tensor(), Tensor(), Tensor(), {.training = false}); }),
              ::testing::HasSubstr("evaluation needs running_mean"));
  EXPECT_THAT(message_of([&] { batch_norm(x, Tensor(), Tensor(), mean, Tensor()); }),
              ::testing::HasSubstr("must both be defined, or neither"));
  EXPECT_THAT(message_of([&] { batch_norm(x, Tensor(), Tensor(), Tensor(), Tensor(), {.eps = -1}); }),
              ::testing::HasSubstr("batch_norm: eps must not be negative, got -1"));
  EXPECT_THAT(message_of([&] { batch_norm(x, Tensor(), Tensor(), Tensor(), Tensor(), {.momentum = NAN}); }),
              ::testing::HasSubstr("batch_norm: momentum must be in [0, 1], got nan"));
  EXPECT_THAT(message_of([&] {
                batch_norm(Tensor::zeros({4, 3}, DType::kInt64), Tensor(), Tensor(), mean, mean);
              }),
              ::testing::HasSubstr("got int64"));
}

}  // namespace
}  // namespace lockstep
