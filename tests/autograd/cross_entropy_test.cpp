// Cross entropy and negative log likelihood with all their options, compared with the formulas of PyTorch's
// documentation in double precision, with finite differences, and with PyTorch's numbers; and their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/losses.h"
#include "lockstep/nn/loss.h"
#include "tests/autograd/gradient_check.h"
#include "tests/autograd/recorded_cross_entropy.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Tensor integers(const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from<std::int64_t>(values, shape);
}
Tensor floats(const std::vector<float>& values, const Shape& shape) { return Tensor::from<float>(values, shape); }

std::vector<float> values_of(const Tensor& x) { return {x.span<float>().begin(), x.span<float>().end()}; }

// Rows of scores, with labels or soft targets; weights are empty, or one per class.
struct Rows {
  std::vector<double> logits;
  std::vector<std::int64_t> labels;
  std::vector<double> soft, weights;
  std::size_t classes;
  double smoothing;
  std::int64_t ignored = kIgnoreIndex;

  double weight(std::size_t k) const { return weights.empty() ? 1 : weights[k]; }
  std::size_t count() const { return logits.size() / classes; }
  double loss_of(std::size_t n) const {
    if (!labels.empty() && labels[n] == ignored) return 0;
    double sum = 0, total = 0;
    for (std::size_t k = 0; k < classes; ++k) sum += std::exp(logits[n * classes + k]);
    for (std::size_t k = 0; k < classes; ++k) {
      const double target = labels.empty() ? soft[n * classes + k] : labels[n] == static_cast<std::int64_t>(k) ? 1 : 0;
      const double smoothed = (1 - smoothing) * target + smoothing / static_cast<double>(classes);
      total -= weight(k) * smoothed * (logits[n * classes + k] - std::log(sum));
    }
    return total;
  }
  double sum() const {
    double total = 0;
    for (std::size_t n = 0; n < count(); ++n) total += loss_of(n);
    return total;
  }
  double divisor() const {
    if (labels.empty()) return static_cast<double>(count());
    double total = 0;
    for (const std::int64_t label : labels) total += label == ignored ? 0 : weight(static_cast<std::size_t>(label));
    return total;
  }
};

template <typename T> std::vector<double> doubles_of(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

struct Case {
  float smoothing;
  bool weighted, soft;
  std::int64_t ignored;
};

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const float smoothing : {0.0F, 0.2F})
    for (const bool weighted : {false, true})
      for (const std::int64_t ignored : {kIgnoreIndex, std::int64_t{1}})
        all.push_back({smoothing, weighted, false, ignored});
  for (const float smoothing : {0.0F, 0.2F})
    for (const bool weighted : {false, true}) all.push_back({smoothing, weighted, true, kIgnoreIndex});
  return all;
}

std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << (of.soft ? "soft targets" : "labels") << ", smoothing " << of.smoothing << ", weighted " << of.weighted
             << ", ignores " << of.ignored;
}

// Logits (2, 3, 4): a batch of two sequences of three. One label is the one that is ignored by default.
class CrossEntropyOptionsTest : public ::testing::TestWithParam<Case> {
 protected:
  CrossEntropyOptionsTest() {
    manual_seed(11);
    logits = random_leaf({2, 3, 4}, -2, 2);
    labels = integers({3, 1, kIgnoreIndex, 0, 1, 2}, {2, 3});
    if (GetParam().ignored != kIgnoreIndex) labels = integers({3, 1, 3, 0, 1, 2}, {2, 3});
    soft = random_leaf({2, 3, 4}, 0, 1);
    if (GetParam().weighted) weight = floats({0.5F, 2, 0.25F, 3}, {4});
  }
  const Tensor& targets() const { return GetParam().soft ? soft : labels; }
  CrossEntropyOptions options(Reduction reduction) const {
    return {GetParam().smoothing, reduction, GetParam().ignored, weight};
  }
  Rows rows() const {
    Rows all{doubles_of(values_of(logits)), {}, {}, {}, 4, double{GetParam().smoothing}, GetParam().ignored};
    if (GetParam().soft)
      all.soft = doubles_of(values_of(soft));
    else
      all.labels.assign(labels.span<std::int64_t>().begin(), labels.span<std::int64_t>().end());
    if (weight.defined()) all.weights = doubles_of(values_of(weight));
    return all;
  }

  Tensor logits, labels, soft, weight;
};
INSTANTIATE_TEST_SUITE_P(All, CrossEntropyOptionsTest, ::testing::ValuesIn(all_cases()));

TEST_P(CrossEntropyOptionsTest, GiveTheFormulasValues) {
  const Rows expected = rows();
  EXPECT_NEAR(nn::cross_entropy(logits, targets(), options(Reduction::kMean)).item(),
              expected.sum() / expected.divisor(), 1e-5);
  EXPECT_NEAR(nn::cross_entropy(logits, targets(), options(Reduction::kSum)).item(), expected.sum(), 1e-5);
  const Tensor each = nn::cross_entropy(logits, targets(), options(Reduction::kNone));
  ASSERT_EQ(each.shape(), (Shape{2, 3}));
  for (std::size_t n = 0; n < 6; ++n) EXPECT_NEAR(each.span<float>()[n], expected.loss_of(n), 1e-5) << "row " << n;
}

TEST_P(CrossEntropyOptionsTest, AgreeWithFiniteDifferences) {
  std::vector<Tensor> leaves = {logits};
  if (GetParam().soft) leaves.push_back(soft);
  check_gradients(leaves, [&] { return nn::cross_entropy(logits, targets(), options(Reduction::kMean)); });
  check_gradients(leaves, [&] { return 3.F * nn::cross_entropy(logits, targets(), options(Reduction::kSum)); });
  check_gradients(leaves, [&] { return weigh(nn::cross_entropy(logits, targets(), options(Reduction::kNone))); });
}

// Two losses of one tensor: the second gradient is added.
TEST_P(CrossEntropyOptionsTest, AddToAGradientThatIsThere) {
  nn::cross_entropy(logits, targets(), options(Reduction::kMean)).backward();
  const std::vector<float> once = values_of(grad(logits));
  nn::cross_entropy(logits, targets(), options(Reduction::kMean)).backward();
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(grad(logits).span<float>()[i], 2 * once[i], 1e-6) << i;
}

TEST_P(CrossEntropyOptionsTest, AreOfTheLastDimensionWhateverComesBefore) {
  const Tensor whole = nn::cross_entropy(logits, targets(), options(Reduction::kNone));
  const Tensor flat_targets = GetParam().soft ? reshape(soft, {6, 4}) : labels.reshaped({6});
  EXPECT_EQ(values_of(nn::cross_entropy(reshape(logits, {6, 4}), flat_targets, options(Reduction::kNone))),
            values_of(whole));
  const Tensor row = reshape(slice(reshape(logits, {6, 4}), 0, {.start = 3, .stop = 4}), {4});
  const Tensor target = GetParam().soft ? reshape(slice(reshape(soft, {6, 4}), 0, {.start = 3, .stop = 4}), {4})
                                        : integers({labels.span<std::int64_t>()[3]}, {});
  const Tensor alone = nn::cross_entropy(row, target, options(Reduction::kNone));
  EXPECT_EQ(alone.shape(), Shape{});
  EXPECT_EQ(alone.item(), whole.span<float>()[3]);
}

TEST_P(CrossEntropyOptionsTest, ComputeInFloat32UnderAnAutoCast) {
  const AutoCast half(DType::kBFloat16);
  const Tensor rounded = cast(logits, DType::kBFloat16);
  const Tensor loss = nn::cross_entropy(rounded, targets(), options(Reduction::kMean));
  EXPECT_EQ(loss.dtype(), DType::kFloat32);
  EXPECT_EQ(loss.item(),
            nn::cross_entropy(cast(rounded, DType::kFloat32), targets(), options(Reduction::kMean)).item());
  loss.backward();
  EXPECT_EQ(grad(logits).dtype(), DType::kFloat32);
  EXPECT_EQ(has_grad(soft), GetParam().soft);
}

TEST(CrossEntropyOfPyTorch, HasTheseNumbers) {
  const auto expect_near = [](const std::vector<float>& got, const std::vector<double>& expected, const char* what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 2e-6 * (1 + std::abs(expected[i]))) << what << " " << i;
  };
  for (const RecordedCrossEntropy& recorded : recorded_cross_entropies()) {
    SCOPED_TRACE(fmt::format("soft {}, weighted {}, smoothing {}, reduction {}", recorded.soft, recorded.weighted,
                             recorded.smoothing, static_cast<int>(recorded.reduction)));
    const Tensor logits = floats({1.5F, -0.5F, 0.25F, 0, 2, -1, -2, 0.5F, 1, 0.75F, 0.75F, -3}, {4, 3});
    const Tensor targets = recorded.soft
                               ? floats({0.2F, 0.3F, 0.5F, 0, 1, 0, 0.25F, 0.25F, 0.25F, 0.9F, 0.1F, 0}, {4, 3})
                               : integers({2, 1, -100, 0}, {4});
    require_grad(logits);
    if (recorded.soft) require_grad(targets);
    const Tensor loss = nn::cross_entropy(logits, targets,
                                          {.label_smoothing = recorded.smoothing,
                                           .reduction = recorded.reduction,
                                           .weight = recorded.weighted ? floats({0.5F, 2, 3}, {3}) : Tensor()});
    expect_near(values_of(loss), recorded.losses, "loss");
    loss.backward(
        {.gradient = recorded.reduction == Reduction::kNone ? floats({1, 2, 3, 4}, {4}) : Tensor::full({}, 1)});
    expect_near(values_of(grad(logits)), recorded.logits_grad, "gradient of the logits");
    if (recorded.soft) expect_near(values_of(grad(targets)), recorded.soft_grad, "gradient of the soft targets");
  }
}

TEST(CrossEntropyOfPadding, IsThatOfTheRowsThatCountAlone) {
  manual_seed(3);
  const Tensor logits = random_leaf({5, 4}, -2, 2);
  const Tensor padded = nn::cross_entropy(logits, integers({2, kIgnoreIndex, 0, kIgnoreIndex, 3}, {5}));
  padded.backward();
  const auto gradient = grad(logits).span<float>();
  const Tensor rest = detach(concat({slice(logits, 0, {0, 1}), slice(logits, 0, {2, 3}), slice(logits, 0, {4, 5})}));
  require_grad(rest);
  const Tensor alone = nn::cross_entropy(rest, integers({2, 0, 3}, {3}));
  alone.backward();
  EXPECT_EQ(padded.item(), alone.item());
  for (const std::size_t ignored : {1U, 3U}) EXPECT_THAT(gradient.subspan(4 * ignored, 4), Each(0)) << ignored;
  for (const auto& [row, same] : {std::pair(0U, 0U), std::pair(2U, 1U), std::pair(4U, 2U)})
    for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(gradient[4 * row + k], grad(rest).span<float>()[4 * same + k]) << row;
}

// PyTorch returns NaN. Here a batch that is only padding changes nothing.
TEST(CrossEntropyOfPadding, AloneIsZeroWithZeroGradients) {
  const Tensor logits = random_leaf({2, 2, 3}), labels = integers({7, 7, 7, 7}, {2, 2});
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
    clear_grad(logits);
    const Tensor loss = nn::cross_entropy(logits, labels, {.reduction = reduction, .ignore_index = 7});
    EXPECT_EQ(loss.item(), 0);
    loss.backward();
    EXPECT_THAT(grad(logits).span<float>(), Each(0));
    EXPECT_EQ(nll_loss(logits, labels, {.reduction = reduction, .ignore_index = 7}).item(), 0);
  }
  EXPECT_EQ(nn::cross_entropy(logits, integers({1, 1, 1, 1}, {2, 2}), {.weight = floats({1, 0, 1}, {3})}).item(), 0)
      << "for a class of weight 0";
}

// NaN in padding has no effect.
TEST(CrossEntropyOfPadding, DoesNotReadLogitsOfPadding) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor logits = floats({1, 2, nan, nan}, {2, 2});
  require_grad(logits);
  const Tensor loss = nn::cross_entropy(logits, integers({0, kIgnoreIndex}, {2}));
  EXPECT_NEAR(loss.item(), std::log1p(std::exp(1.0)), 1e-6);
  loss.backward();
  EXPECT_THAT(grad(logits).span<float>().subspan(2), Each(0));
}

TEST(CrossEntropyOfSoftTargets, OfLogitsThatAreMinusInfinityIsFiniteWhereTheTargetIsZero) {
  const Tensor logits = floats({0, 0, -std::numeric_limits<float>::infinity()}, {1, 3});
  EXPECT_NEAR(nn::cross_entropy(logits, floats({0.5F, 0.5F, 0}, {1, 3})).item(), std::log(2.0), 1e-6);
}

TEST(CrossEntropyOfSoftTargets, IsThatOfLabelsWhereOneTargetIsAll) {
  manual_seed(5);
  const Tensor logits = random_leaf({3, 4}, -3, 3);
  const Tensor labels = integers({1, 0, 3}, {3}), soft = floats({0, 1, 0, 0, /**/ 1, 0, 0, 0, /**/ 0, 0, 0, 1}, {3, 4});
  for (const float smoothing : {0.0F, 0.1F})
    EXPECT_NEAR(nn::cross_entropy(logits, soft, {.label_smoothing = smoothing}).item(),
                nn::cross_entropy(logits, labels, {.label_smoothing = smoothing}).item(), 1e-6);
}

TEST(NllLossOptionsTest, AreThoseOfCrossEntropy) {
  manual_seed(6);
  const Tensor logits = random_leaf({2, 3, 4}, -2, 2), weight = floats({0.5F, 2, 0.25F, 3}, {4});
  const Tensor labels = integers({3, 1, kIgnoreIndex, 0, 1, 2}, {2, 3});
  for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
    for (const Tensor& each : {Tensor(), weight}) {
      const NllLossOptions options{.reduction = reduction, .weight = each};
      const Tensor loss = nll_loss(log_softmax(logits), labels, options);
      const Tensor expected = nn::cross_entropy(logits, labels, {.reduction = reduction, .weight = each});
      ASSERT_EQ(loss.shape(), expected.shape());
      for (std::size_t i = 0; i < loss.span<float>().size(); ++i)
        EXPECT_NEAR(loss.span<float>()[i], expected.span<float>()[i], 1e-5);
      check_gradients({logits}, [&] { return weigh(nll_loss(log_softmax(logits), labels, options)); });
    }
  }
}

// Elementwise losses without reduction: their mean and sum equal the other reductions.
TEST(ElementwiseLossesOneByOne, AddUpToTheirSum) {
  manual_seed(8);
  const Tensor x = spaced_leaf({3, 7}, 1), target = random_leaf({3, 7}, 0.1F, 0.9F), apart = random_leaf({3, 7}, 2, 3);
  for (const auto loss : {mse_loss, l1_loss, binary_cross_entropy_with_logits}) {
    const Tensor each = loss(x, target, Reduction::kNone);
    ASSERT_EQ(each.shape(), x.shape());
    EXPECT_NEAR(sum(each).item(), loss(x, target, Reduction::kSum).item(), 1e-4);
    EXPECT_NEAR(mean(each).item(), loss(x, target, Reduction::kMean).item(), 1e-5);
  }
  check_gradients({x, target}, [&] { return weigh(mse_loss(x, target, Reduction::kNone)); });
  check_gradients({x, target}, [&] { return weigh(binary_cross_entropy_with_logits(x, target, Reduction::kNone)); });
  check_gradients({x, apart}, [&] { return weigh(l1_loss(x, apart, Reduction::kNone)); });
  EXPECT_EQ(binary_cross_entropy_with_logits(floats({300, -300}, {2}), floats({1, 0}, {2}), Reduction::kNone)
                .span<float>()[1],
            0);
  EXPECT_EQ(mse_loss(Tensor::zeros({0, 3}), Tensor::zeros({0, 3}), Reduction::kNone).shape(), (Shape{0, 3}));
}

TEST(CrossEntropyRefusals, NameTheArgumentAndThePlace) {
  const Tensor logits = Tensor::zeros({2, 3, 4}), labels = Tensor::zeros({2, 3}, DType::kInt64),
               weight = Tensor::full({4}, 1);
  const auto refusal = [&](const Tensor& targets, const CrossEntropyOptions& options = {}) {
    return message_of([&] { nn::cross_entropy(logits, targets, options); });
  };
  EXPECT_THAT(refusal(integers({0, 1, 2, 3, 9, 0}, {2, 3})),
              HasSubstr("softmax_cross_entropy: label 9 at (1, 1) is outside 0..3 and is not ignore_index, -100"));
  EXPECT_THAT(refusal(integers({0, 1, 2, 3, kIgnoreIndex, 0}, {2, 3}), {.ignore_index = -1}),
              HasSubstr("label -100 at (1, 1)"));
  EXPECT_THAT(refusal(Tensor::zeros({2, 4}, DType::kInt64)),
              AllOf(HasSubstr("labels must be int64 (2, 3)"), HasSubstr("(2, 3, 4), got int64 (2, 4)")));
  EXPECT_THAT(refusal(Tensor::zeros({2, 3})), HasSubstr("got float32 (2, 3)"));
  EXPECT_THAT(refusal(Tensor()), HasSubstr("an undefined tensor"));
  EXPECT_THAT(refusal(labels, {.weight = Tensor::zeros({3})}),
              HasSubstr("weight (3) must have one element for each of the 4 classes"));
  EXPECT_THAT(refusal(labels, {.weight = Tensor::zeros({4}, DType::kInt64)}),
              HasSubstr("weight (K) must be float32, got int64"));
  require_grad(weight);
  EXPECT_THAT(refusal(labels, {.weight = weight}),
              HasSubstr("classes' weights are not differentiated: pass detach(weight)"));
  EXPECT_THAT(refusal(Tensor::zeros({2, 3, 4}), {.ignore_index = 0}),
              HasSubstr("ignore_index 0 only applies to labels"));
  EXPECT_THAT(message_of([&] { nn::cross_entropy(Tensor::zeros({}), labels); }), HasSubstr("is a scalar"));
  EXPECT_THAT(message_of([&] {
                nll_loss(logits, Tensor::zeros({2, 3, 4}));
              }),
              HasSubstr("nll_loss: labels must be int64 (2, 3), got"));
}

TEST(CountsOfLabels, LeaveOutPadding) {
  const Tensor labels = integers({1, kIgnoreIndex, 0, kIgnoreIndex}, {2, 2});
  EXPECT_EQ(nn::count_labels(labels), 2);
  EXPECT_EQ(nn::count_labels(labels, 0), 3);
  const Tensor logits = floats({0, 1, /**/ 1, 0, /**/ 0, 1, /**/ 0, 1}, {2, 2, 2});
  EXPECT_EQ(nn::count_correct(logits, labels), 1);
  EXPECT_THAT(message_of([] { nn::count_labels(Tensor::zeros({2})); }),
              HasSubstr("count_labels: labels must be int64, got float32"));
}

}  // namespace
}  // namespace lockstep
