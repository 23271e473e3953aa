// Losses, compared with their formulas in double precision and with finite differences, and their errors.
#include "lockstep/autograd/losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "lockstep/autograd/softmax.h"
#include "lockstep/nn/loss.h"
#include "tests/autograd/gradient_check.h"

namespace lockstep {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

const std::array<std::int64_t, 5> kLabels = {0, 3, 1, 1, 2};
Tensor some_labels() { return Tensor::from<std::int64_t>(kLabels, {5}); }

// -sum over k of target_k * log softmax(row)_k, written out.
double smoothed_cross_entropy(const Tensor& logits, double smoothing) {
  const std::int64_t classes = logits.shape()[1];
  double total = 0;
  for (std::int64_t n = 0; n < logits.shape()[0]; ++n) {
    const float* const row = logits.data<float>() + n * classes;
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(double{row[k]});
    for (std::int64_t k = 0; k < classes; ++k) {
      const double target =
          smoothing / static_cast<double>(classes) + (kLabels[static_cast<std::size_t>(n)] == k ? 1 - smoothing : 0);
      total -= target * (row[k] - std::log(sum));
    }
  }
  return total;
}

TEST(CrossEntropy, SmoothsLabels) {
  manual_seed(1);
  const Tensor logits = random_leaf({5, 4}, -2, 2), labels = some_labels();
  for (const float smoothing : {0.f, 0.1f, 0.5f, 1.f}) {
    const double expected = smoothed_cross_entropy(logits, smoothing);
    EXPECT_NEAR(softmax_cross_entropy(logits, labels, {.label_smoothing = smoothing}).item(), expected / 5, 1e-5);
    EXPECT_NEAR(softmax_cross_entropy(logits, labels, {smoothing, Reduction::kSum}).item(), expected, 1e-5);
    EXPECT_NEAR(nn::cross_entropy(logits, labels, {.label_smoothing = smoothing}).item(), expected / 5, 1e-5);
  }
}

// A common offset of all logits of a row cancels without loss of precision.
TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirNumberWhateverTheyAre) {
  const float expected = -std::log(4.0F);
  EXPECT_EQ(expected, -1.3862944F);
  for (const float offset : {0.0F, 100.0F, 1e3F, 1e4F, 1e6F, -1e6F, 1e8F}) {
    const Tensor logits = Tensor::full({3, 4}, offset), labels = Tensor::zeros({3}, DType::kInt64);
    for (const float value : log_softmax(logits).span<float>()) EXPECT_EQ(value, expected) << offset;
    EXPECT_EQ(nll_loss(log_softmax(logits), labels).item(), -expected) << offset;
    for (const float smoothing : {0.0F, 0.1F, 1.0F})
      EXPECT_EQ(softmax_cross_entropy(logits, labels, {.label_smoothing = smoothing}).item(), -expected)
          << offset << ", " << smoothing;
  }
}

TEST(CrossEntropy, SmoothedGradientsAgreeWithFiniteDifferences) {
  manual_seed(2);
  const Tensor logits = random_leaf({5, 4}, -2, 2), labels = some_labels();
  check_gradients({logits}, [&] { return softmax_cross_entropy(logits, labels, {.label_smoothing = 0.2f}); });
  check_gradients({logits}, [&] { return softmax_cross_entropy(logits, labels, {0.2f, Reduction::kSum}); });
  check_gradients({logits},
                  [&] { return 3.f * softmax_cross_entropy(logits, labels, {.reduction = Reduction::kSum}); });
}

TEST(CrossEntropy, OfALogitOfMinusInfinityIsFinite) {
  const std::array<float, 3> scores = {0, 0, -std::numeric_limits<float>::infinity()};
  const std::array<std::int64_t, 1> first = {0};
  const Tensor logits = Tensor::from<float>(scores, {1, 3}), labels = Tensor::from<std::int64_t>(first, {1});
  EXPECT_NEAR(softmax_cross_entropy(logits, labels).item(), std::log(2.), 1e-6);
}

TEST(NllLoss, IsTheMeanOfWhatStandsAtTheLabels) {
  manual_seed(3);
  const Tensor x = random_leaf({5, 4}), labels = some_labels();
  double sum = 0;
  for (std::size_t n = 0; n < 5; ++n) sum -= x.data<float>()[n * 4 + static_cast<std::size_t>(kLabels[n])];
  EXPECT_NEAR(nll_loss(x, labels).item(), sum / 5, 1e-6);
  EXPECT_NEAR(nll_loss(x, labels, Reduction::kSum).item(), sum, 1e-6);
  check_gradients(
      {x}, [&] { return nll_loss(x, labels); }, 0.1f);
  check_gradients(
      {x}, [&] { return nll_loss(x, labels, Reduction::kSum); }, 0.1f);
}

TEST(ElementwiseLosses, AreTheirFormulas) {
  manual_seed(4);
  const Tensor x = random_leaf({3, 7}, -4, 4), target = random_leaf({3, 7}, 0, 1);
  double squares = 0, distances = 0, entropy = 0;
  for (std::int64_t i = 0; i < 21; ++i) {
    const double a = x.data<float>()[i], t = target.data<float>()[i], p = 1 / (1 + std::exp(-a));
    squares += (a - t) * (a - t);
    distances += std::abs(a - t);
    entropy -= t * std::log(p) + (1 - t) * std::log(1 - p);
  }
  EXPECT_NEAR(mse_loss(x, target).item(), squares / 21, 1e-5);
  EXPECT_NEAR(mse_loss(x, target, Reduction::kSum).item(), squares, 1e-4);
  EXPECT_NEAR(l1_loss(x, target).item(), distances / 21, 1e-5);
  EXPECT_NEAR(l1_loss(x, target, Reduction::kSum).item(), distances, 1e-4);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, target).item(), entropy / 21, 1e-5);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, target, Reduction::kSum).item(), entropy, 1e-4);
}

TEST(ElementwiseLosses, AgreeWithFiniteDifferences) {
  manual_seed(5);
  const Tensor x = spaced_leaf({3, 7}, 1), target = random_leaf({3, 7}, 0, 1);
  const Tensor apart = random_leaf({3, 7}, 2, 3);  // far from x: no step crosses |x - t|'s kink
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    check_gradients({x, target}, [&] { return mse_loss(x, target, reduction); });
    check_gradients({x, target}, [&] { return binary_cross_entropy_with_logits(x, target, reduction); });
    check_gradients({x, apart}, [&] { return l1_loss(x, apart, reduction); });
    check_gradients({x, apart}, [&] { return l1_loss(apart, x, reduction) + mse_loss(x, apart, reduction); });
  }
}

TEST(ElementwiseLosses, OfOneTensorTwice) {
  const Tensor x = random_leaf({4});
  mse_loss(x, x).backward();
  EXPECT_THAT(grad(x).span<float>(), ::testing::Each(0));
}

TEST(ElementwiseLosses, DoNotOverflowAndLetNaNThrough) {
  const std::array<float, 2> large = {300, -300}, zero_one = {1, 0}, broken = {1, kNotANumber};
  const Tensor x = Tensor::from<float>(large, {2}), target = Tensor::from<float>(zero_one, {2}),
               nan = Tensor::from<float>(broken, {2});
  EXPECT_EQ(binary_cross_entropy_with_logits(x, target).item(), 0);
  EXPECT_EQ(binary_cross_entropy_with_logits(target, x, Reduction::kSum).item(),
            static_cast<float>(1 - 300 + std::log1p(std::exp(-1.)) + std::log(2.)));
  for (const auto loss : {mse_loss, l1_loss, binary_cross_entropy_with_logits}) {
    const Tensor leaf = nan.clone();
    require_grad(leaf);
    const Tensor result = loss(leaf, target, Reduction::kMean);
    EXPECT_TRUE(std::isnan(result.item()));
    result.backward();
    EXPECT_FALSE(std::isnan(grad(leaf).data<float>()[0]));
    EXPECT_TRUE(std::isnan(grad(leaf).data<float>()[1]));
  }
}

TEST(Losses, Of16BitsComputeInFloat32) {
  manual_seed(6);
  const Tensor x = cast(random_leaf({4, 3}), DType::kBFloat16), target = random_leaf({4, 3});
  const Tensor loss = mse_loss(x, target);
  EXPECT_EQ(loss.dtype(), DType::kFloat32);
  EXPECT_EQ(loss.item(), mse_loss(cast(x, DType::kFloat32), target).item());
}

TEST(Losses, OfNothing) {
  const Tensor none = random_leaf({0, 3});
  const Tensor no_labels = Tensor::zeros({0}, DType::kInt64);
  EXPECT_EQ(mse_loss(none, none, Reduction::kSum).item(), 0);
  EXPECT_EQ(softmax_cross_entropy(none, no_labels, {.reduction = Reduction::kSum}).item(), 0);
  EXPECT_EQ(nll_loss(none, no_labels, Reduction::kSum).item(), 0);
  (mse_loss(none, Tensor::zeros({0, 3}), Reduction::kSum) +
   softmax_cross_entropy(none, no_labels, {.reduction = Reduction::kSum}) + nll_loss(none, no_labels, Reduction::kSum))
      .backward();
  EXPECT_TRUE(has_grad(none));
  EXPECT_EQ(grad(none).count(), 0);
  EXPECT_THROW(mse_loss(none, none), InvalidArgument);
  EXPECT_THROW(softmax_cross_entropy(none, no_labels), InvalidArgument);
  EXPECT_THROW(nll_loss(none, no_labels), InvalidArgument);
}

template <typename Call> std::string loss_refusal(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Losses, NameWhatTheyRefuse) {
  const Tensor x = Tensor::zeros({2, 3}), other = Tensor::zeros({3, 2});
  const std::array<std::int64_t, 2> outside = {0, 3};
  const Tensor labels = Tensor::from<std::int64_t>(outside, {2});
  EXPECT_NE(loss_refusal([&] { nll_loss(x, labels); }).find("nll_loss: label 3 in row 1 is outside 0..2"),
            std::string::npos);
  EXPECT_NE(loss_refusal([&] { mse_loss(x, other); }).find("mse_loss: target (3, 2) must have the shape of x, (2, 3)"),
            std::string::npos);
  EXPECT_NE(loss_refusal([&] { l1_loss(Tensor(), x); }).find("l1_loss"), std::string::npos);
  EXPECT_NE(loss_refusal([&] { binary_cross_entropy_with_logits(x, labels); }).find("binary_cross_entropy_with_logits"),
            std::string::npos);
  EXPECT_NE(loss_refusal([&] {
              softmax_cross_entropy(x, labels, {.label_smoothing = -0.1f});
            }).find("label_smoothing -0.1 is outside 0..1"),
            std::string::npos);
}

// Probabilities far from Keras' clipping bounds, of rows that do not add up to 1: the loss normalises them.
TEST(ProbabilityLosses, HaveTheGradientsOfFiniteDifferences) {
  manual_seed(12);
  const Tensor p = random_leaf({5, 4}, 0.1F, 0.9F), soft = random_leaf({5, 4}, 0.1F, 0.9F);
  const Tensor weight = Tensor::from<float>(std::array{0.5F, 2.0F, 1.0F, 1.5F}, {4});
  for (const float smoothing : {0.0F, 0.2F})
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
      const CrossEntropyOptions options{
          .label_smoothing = smoothing, .reduction = reduction, .weight = weight, .from_logits = false};
      check_gradients({p}, [&] { return weigh(softmax_cross_entropy(p, some_labels(), options)); });
      check_gradients({p, soft}, [&] { return weigh(softmax_cross_entropy(p, soft, options)); });
      check_gradients({p, soft}, [&] { return weigh(binary_cross_entropy(p, soft, {.reduction = reduction})); });
    }
}

}  // namespace
}  // namespace lockstep
