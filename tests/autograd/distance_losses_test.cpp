// Huber, Kullback-Leibler, triplet, cosine and CTC losses: what PyTorch computes, all alignments counted one by one,
// and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "lockstep/autograd/softmax.h"
#include "lockstep/nn/loss.h"
#include "tests/autograd/gradient_check.h"
#include "tests/autograd/recorded_losses.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

Tensor whole_numbers(const std::vector<std::int64_t>& values, const Shape& shape) {
  return Tensor::from(std::span<const std::int64_t>(values), shape);
}

Reduction reduction_of(const std::string& name) {
  return name.ends_with("_sum") ? Reduction::kSum : name.ends_with("_none") ? Reduction::kNone : Reduction::kMean;
}

Tensor ctc_of_three(const Tensor& logits, const CtcLossOptions& options) {
  return nn::ctc_loss(log_softmax(logits), whole_numbers({1, 1, 2, 3, 2, 0, 1, 2, 3}, {3, 3}),
                      whole_numbers({6, 4, 2}, {3}), whole_numbers({3, 2, 3}, {3}), options);
}

Tensor loss_of(const std::string& name, const std::vector<Tensor>& x) {
  const Reduction reduction = reduction_of(name);
  if (name.starts_with("huber")) return nn::huber_loss(x[0], x[1], 0.7f, reduction);
  if (name.starts_with("smooth_l1")) return nn::smooth_l1_loss(x[0], x[1], 0.7f, reduction);
  if (name == "kl_div_batchmean") return nn::kl_div(x[0], x[1], {.batch_mean = true});
  if (name == "kl_div_log") return nn::kl_div(x[0], x[1], {.log_target = true, .reduction = Reduction::kSum});
  if (name.starts_with("kl_div")) return nn::kl_div(x[0], x[1], {.reduction = reduction});
  if (name == "triplet_swap") return nn::triplet_margin_loss(x[0], x[1], x[2], {.margin = 2, .p = 1, .swap = true});
  if (name.starts_with("triplet"))
    return nn::triplet_margin_loss(x[0], x[1], x[2], {.margin = 2, .reduction = reduction});
  if (name.starts_with("cosine"))
    return nn::cosine_embedding_loss(x[0], x[1], whole_numbers({1, -1, 1, -1}, {4}),
                                     {.margin = -0.5f, .reduction = reduction});
  if (name.starts_with("ctc")) return ctc_of_three(x[0], {.reduction = reduction, .zero_infinity = true});
  throw InvalidArgument("no loss has the name {}", name);
}

TEST(DistanceLosses, EqualPyTorchs) {
  for (const RecordedLoss& recorded : recorded_losses()) {
    SCOPED_TRACE(recorded.name);
    std::vector<Tensor> leaves;
    for (const std::vector<float>& values : recorded.inputs) {
      const Shape shape = recorded.name.starts_with("ctc") ? Shape({3, 6, 4}) : Shape({4, 3});
      leaves.push_back(Tensor::from(std::span<const float>(values), shape));
      require_grad(leaves.back());
    }
    const Tensor losses = loss_of(recorded.name, leaves);
    ASSERT_EQ(losses.count(), static_cast<std::int64_t>(recorded.losses.size()));
    for (std::size_t i = 0; i < recorded.losses.size(); ++i)
      EXPECT_NEAR(losses.span<float>()[i], recorded.losses[i], 2e-6 * std::max(1.0f, std::abs(recorded.losses[i])));
    const Tensor factors = reshape(arange(1.0, 1.0 + static_cast<double>(losses.count()), 1.0), losses.shape());
    sum(losses * factors).backward();
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf)
      for (std::size_t i = 0; i < recorded.gradients[leaf].size(); ++i)
        EXPECT_NEAR(grad(leaves[leaf]).span<float>()[i], recorded.gradients[leaf][i], 3e-6) << leaf << ' ' << i;
  }
}

TEST(DistanceLosses, ATargetOfZeroHasNoDivergence) {
  const Tensor log_probabilities = Tensor::full({2}, -1), target = Tensor::zeros({2});
  require_grad(log_probabilities), require_grad(target);
  const Tensor loss = nn::kl_div(log_probabilities, target, {.reduction = Reduction::kSum});
  EXPECT_EQ(loss.item(), 0);
  loss.backward();
  for (const Tensor& leaf : {log_probabilities, target})
    for (const float value : grad(leaf).span<float>()) EXPECT_EQ(value, 0);
}

// Also where the model gives that target no probability.
TEST(DistanceLosses, ATargetOfZeroHasNoGradientAndANanTargetShows) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (const bool log_target : {false, true}) {
    SCOPED_TRACE(log_target);
    const float zero = log_target ? minus_infinity : 0.0f;
    const Tensor x = Tensor::from<float>(std::array{-1.0f, minus_infinity, -2.0f}, {3}),
                 target = Tensor::from<float>(std::array{zero, zero, log_target ? -2.0f : std::exp(-2.0f)}, {3});
    require_grad(x), require_grad(target);
    const Tensor loss = nn::kl_div(x, target, {.log_target = log_target, .reduction = Reduction::kSum});
    EXPECT_NEAR(loss.item(), 0, 1e-6);
    loss.backward();
    for (const Tensor& leaf : {x, target}) EXPECT_THAT(grad(leaf).span<float>().first(2), ::testing::ElementsAre(0, 0));
    EXPECT_NEAR(grad(x).span<float>()[2], -std::exp(-2.0f), 1e-6);
    const Tensor nan = Tensor::full({3}, std::nanf(""));
    EXPECT_TRUE(std::isnan(nn::kl_div(x, nan, {.log_target = log_target}).item()));
  }
  EXPECT_TRUE(std::isnan(nn::kl_div(Tensor::full({1}, -1), Tensor::full({1}, -0.5f)).item()));
}

TEST(DistanceLosses, EqualRowsHaveNoGradientForAnyNorm) {
  for (const float p : {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(p);
    const Tensor anchor = Tensor::full({1, 3}, 2), near = Tensor::full({1, 3}, 2),
                 far = Tensor::from<float>(std::array{2.0f, 3.0f, 2.0f}, {1, 3});
    require_grad(anchor), require_grad(near), require_grad(far);
    const Tensor loss = nn::triplet_margin_loss(anchor, near, far, {.margin = 3, .p = p, .eps = 0});
    EXPECT_EQ(loss.item(), 2);  // 0 - 1 + 3
    loss.backward();
    EXPECT_THAT(grad(near).span<float>(), ::testing::Each(0.0f));
    EXPECT_THAT(grad(anchor).span<float>(), ::testing::ElementsAre(0, 1, 0));
    EXPECT_THAT(grad(far).span<float>(), ::testing::ElementsAre(0, -1, 0));
  }
}

TEST(DistanceLosses, GradientsAreThoseOfFiniteDifferences) {
  const Tensor x = spaced_leaf({5, 4}, 1), y = spaced_leaf({5, 4}, 2), z = spaced_leaf({5, 4}, 3);
  check_gradients(
      {x, y}, [&] { return weigh(nn::huber_loss(x, y, 0.3f, Reduction::kNone)); }, 1e-3f);
  check_gradients({x, y, z}, [&] {
    return weigh(nn::triplet_margin_loss(x, y, z, {.margin = 5, .p = 3, .reduction = Reduction::kNone}));
  });
  check_gradients(
      {x, y},
      [&] {
        return weigh(nn::cosine_embedding_loss(x, y, whole_numbers({1, -1, 1, -1, 1}, {5}),
                                               {.margin = -1, .reduction = Reduction::kNone}));
      },
      3e-3f);
  const Tensor target = random_leaf({5, 4}, 0.1f, 1);
  check_gradients({x, target}, [&] { return weigh(nn::kl_div(x, target, {.reduction = Reduction::kNone})); });
  const Tensor logits = spaced_leaf({3, 6, 4}, 4);
  check_gradients({logits},
                  [&] { return sum(ctc_of_three(logits, {.reduction = Reduction::kSum, .zero_infinity = true})); });
}

// The sum over all sequences of T classes that collapse to the labels, one by one.
double ctc_by_enumeration(const Tensor& log_probabilities, const std::vector<std::int64_t>& labels) {
  const std::int64_t steps = log_probabilities.shape()[1], classes = log_probabilities.shape()[2];
  std::vector<std::int64_t> path(static_cast<std::size_t>(steps), 0);
  double total = 0;
  for (;;) {
    std::vector<std::int64_t> collapsed;
    double log_of_path = 0;
    for (std::size_t t = 0; t < path.size(); ++t) {
      log_of_path +=
          log_probabilities.span<float>()[t * static_cast<std::size_t>(classes) + static_cast<std::size_t>(path[t])];
      if (path[t] != 0 && (t == 0 || path[t] != path[t - 1])) collapsed.push_back(path[t]);
    }
    if (collapsed == labels) total += std::exp(log_of_path);
    std::size_t at = 0;
    while (at < path.size() && ++path[at] == classes) path[at++] = 0;
    if (at == path.size()) return -std::log(total);
  }
}

TEST(CtcLoss, SumsAllAlignments) {
  manual_seed(3);
  const Tensor log_probabilities = log_softmax(random_leaf({1, 5, 3}, -2, 2));
  for (const std::vector<std::int64_t>& labels :
       std::vector<std::vector<std::int64_t>>{{}, {1}, {1, 1}, {2, 1}, {1, 1, 1}, {1, 2, 1, 2}, {1, 2, 1, 2, 1}}) {
    std::vector<std::int64_t> padded = labels;
    padded.resize(6, 1);  // what follows a target is not read
    const auto length = static_cast<std::int64_t>(labels.size());
    const float loss = nn::ctc_loss(log_probabilities, whole_numbers(padded, {1, 6}), whole_numbers({5}, {1}),
                                    whole_numbers({length}, {1}), {.reduction = Reduction::kSum})
                           .item();
    EXPECT_NEAR(loss, ctc_by_enumeration(log_probabilities, labels), 1e-5) << length;
  }
}

TEST(CtcLoss, ATargetThatDoesNotFitIsInfinite) {
  const Tensor logits = spaced_leaf({3, 6, 4}, 4);
  const Tensor losses = ctc_of_three(logits, {.reduction = Reduction::kNone});
  EXPECT_TRUE(std::isfinite(losses.span<float>()[0]));
  EXPECT_EQ(losses.span<float>()[2], std::numeric_limits<float>::infinity());  // three labels in two inputs
  sum(losses).backward();
  for (std::size_t i = 48; i < 72; ++i) EXPECT_EQ(grad(logits).span<float>()[i], 0);
  const Tensor one = nn::ctc_loss(Tensor::zeros({1, 3, 2}), whole_numbers({1}, {1, 1}), whole_numbers({0}, {1}),
                                  whole_numbers({1}, {1}));
  EXPECT_EQ(one.item(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(nn::ctc_loss(Tensor::zeros({1, 0, 2}), whole_numbers({1}, {1, 1}), whole_numbers({0}, {1}),
                         whole_numbers({0}, {1}))
                .item(),
            0);
}

// A class that a mask excludes has the log-probability -infinity.
TEST(CtcLoss, ImpossibleClassesHaveNoNanInTheirGradients) {
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  for (const bool zero_infinity : {false, true}) {
    SCOPED_TRACE(zero_infinity);
    // Sample 0 cannot have its label 2 at any step, sample 1 can have its label 1; neither can have a blank at step 2.
    const Tensor x = Tensor::full({2, 4, 3}, -1);
    for (std::size_t step = 0; step < 4; ++step) x.span<float>()[step * 3 + 2] = minus_infinity;
    for (const std::size_t sample : {0, 1}) x.span<float>()[(sample * 4 + 2) * 3] = minus_infinity;
    require_grad(x);
    const Tensor losses =
        nn::ctc_loss(x, whole_numbers({2, 1}, {2, 1}), whole_numbers({4, 4}, {2}), whole_numbers({1, 1}, {2}),
                     {.reduction = Reduction::kNone, .zero_infinity = zero_infinity});
    EXPECT_EQ(losses.span<float>()[0], zero_infinity ? 0 : -minus_infinity);
    EXPECT_TRUE(std::isfinite(losses.span<float>()[1]));
    sum(losses).backward();
    const auto gradients = grad(x).span<float>();
    EXPECT_THAT(gradients.first(12), ::testing::Each(0.0f));
    for (const float gradient : gradients.subspan(12)) EXPECT_TRUE(std::isfinite(gradient)) << gradient;
    EXPECT_LT(gradients[12 + 2 * 3 + 1], -0.5f);  // step 2 of sample 1 must be its label
  }
}

TEST(CtcLoss, MistakesAreNamed) {
  const Tensor x = Tensor::zeros({2, 5, 3});
  const auto message = [&](const Tensor& targets, const Tensor& inputs, const Tensor& lengths, std::int64_t blank = 0) {
    return message_of([&] { nn::ctc_loss(x, targets, inputs, lengths, {.blank = blank}); });
  };
  const Tensor targets = whole_numbers({1, 2, 1, 1}, {2, 2}), five = whole_numbers({5, 5}, {2}),
               two = whole_numbers({2, 2}, {2});
  EXPECT_THAT(message(whole_numbers({1, 3, 1, 1}, {2, 2}), five, two),
              HasSubstr("label 1 of sample 0 is 3, expected one of 3 classes"));
  EXPECT_THAT(message(targets, five, two, 2), HasSubstr("label 1 of sample 0 is 2"));
  EXPECT_THAT(message(targets, five, two, 3), HasSubstr("blank is 3"));
  EXPECT_THAT(message(targets, whole_numbers({5, 6}, {2}), two),
              HasSubstr("input_lengths of sample 1 is 6, expected a number from 0 to 5"));
  EXPECT_THAT(message(targets, five, whole_numbers({3, 0}, {2})), HasSubstr("target_lengths of sample 0 is 3"));
  EXPECT_THAT(message(targets, whole_numbers({5}, {1}), two),
              HasSubstr("input_lengths has 1 values, expected one for each of 2 samples"));
  EXPECT_THAT(message(whole_numbers({1, 2}, {1, 2}), five, two), HasSubstr("must have a row for each sample"));
  EXPECT_THAT(message(Tensor::zeros({2, 2}), five, two), HasSubstr("targets (N, S) must be int64, got float32"));
}

TEST(DistanceLosses, MistakesAreNamed) {
  const Tensor x = Tensor::zeros({2, 3}), y = Tensor::zeros({2, 2}), none = Tensor::zeros({0, 3});
  EXPECT_THAT(message_of([&] { nn::huber_loss(x, y); }),
              HasSubstr("huber_loss: target (2, 2) must have the shape of x, (2, 3)"));
  EXPECT_THAT(message_of([&] { nn::huber_loss(x, x, 0); }), HasSubstr("delta must be above 0, got 0"));
  EXPECT_THAT(message_of([&] { nn::smooth_l1_loss(x, x, -1); }), HasSubstr("beta must be 0 or more, got -1"));
  EXPECT_EQ(nn::smooth_l1_loss(x, x, 0).item(), 0);
  for (const float beta : {0.0f, 1.0f}) {
    EXPECT_THAT(message_of([&] { nn::smooth_l1_loss(x, y, beta); }),
                HasSubstr("smooth_l1_loss: target (2, 2) must have the shape of x, (2, 3)"));
    EXPECT_THAT(message_of([&] { nn::smooth_l1_loss(none, none, beta); }), HasSubstr("smooth_l1_loss: the inputs"));
  }
  EXPECT_THAT(message_of([&] { nn::huber_loss(none, none); }), HasSubstr("no rows"));
  EXPECT_THAT(message_of([&] { nn::kl_div(x, x, {.reduction = Reduction::kSum, .batch_mean = true}); }),
              HasSubstr("batch_mean needs Reduction::kMean"));
  EXPECT_THAT(message_of([&] { nn::triplet_margin_loss(x, x, y); }),
              HasSubstr("negative (2, 2) must have the shape of anchor, (2, 3)"));
  EXPECT_THAT(message_of([&] { nn::triplet_margin_loss(x, x, x, {.margin = 0}); }), HasSubstr("margin 0"));
  EXPECT_THAT(message_of([&] {
                nn::cosine_embedding_loss(x, x, whole_numbers({1, 1, 1}, {3}));
              }),
              HasSubstr("target (3) must have one value for each row of a (2, 3)"));
  EXPECT_THAT(message_of([&] { nn::cosine_embedding_loss(x, x, Tensor::zeros({2, 1})); }), HasSubstr("target"));
}

}  // namespace
}  // namespace lockstep
