// Metrics checked by hand, and an evaluation that has the same bits with any number of ranks.
#include "lockstep/train/metrics.h"
#include "lockstep/train/regression_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <stdexcept>

#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/data/combine.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"
#include "lockstep/train/evaluate.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::train {
namespace {

constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN(), kInfinite = std::numeric_limits<float>::infinity();

Tensor logits_of(const std::vector<float>& values, std::int64_t classes) {
  return Tensor::from<float>(values, {static_cast<std::int64_t>(values.size()) / classes, classes});
}
Tensor labels_of(const std::vector<std::int64_t>& labels) {
  return Tensor::from<std::int64_t>(labels, {static_cast<std::int64_t>(labels.size())});
}

TEST(Metrics, CountByHand) {
  Accuracy accuracy;
  TopK top2(2);
  ConfusionMatrix matrix(3);
  const Tensor logits = logits_of({1, 2, 3, /**/ 3, 2, 1, /**/ 2, 2, 0, /**/ 0, kQuietNan, 9, /**/ 5, 1, 2}, 3);
  const Tensor labels = labels_of({2, 1, 1, 2, 1});
  for (Metric* const metric : std::initializer_list<Metric*>{&accuracy, &top2, &matrix}) metric->update(logits, labels);
  EXPECT_EQ(accuracy.correct(), 1) << "of equal logits the first is predicted";
  EXPECT_EQ(accuracy.samples(), 5);
  EXPECT_EQ(accuracy.value(), 0.2);
  EXPECT_EQ(top2.correct(), 3);
  EXPECT_EQ(matrix.at(2, 2), 1);
  EXPECT_EQ(matrix.at(1, 0), 3);
  EXPECT_EQ(matrix.unpredicted(2), 1);
  EXPECT_EQ(matrix.recall(2), 0.5);
  EXPECT_EQ(matrix.precision(2), 1);
  EXPECT_EQ(matrix.precision(0), 0);
  EXPECT_TRUE(std::isnan(matrix.recall(0))) << "no sample has this class";
  accuracy.reset();
  EXPECT_TRUE(std::isnan(accuracy.value()));
}

TEST(Metrics, RefuseLabelsOutsideTheClasses) {
  Accuracy accuracy;
  ConfusionMatrix matrix(4);
  EXPECT_THROW(accuracy.update(logits_of({1, 2, 3}, 3), labels_of({3})), InvalidArgument);
  EXPECT_THROW(accuracy.update(logits_of({1, 2, 3}, 3), labels_of({-1})), InvalidArgument);
  EXPECT_THROW(accuracy.update(logits_of({1, 2, 3}, 3), labels_of({0, 1})), InvalidArgument);
  EXPECT_THROW(matrix.update(logits_of({1, 2, 3}, 3), labels_of({0})), InvalidArgument) << "the matrix has 4 classes";
  EXPECT_THROW(matrix.at(0, 4), InvalidArgument);
  EXPECT_THROW(TopK(0), InvalidArgument);
  EXPECT_THROW(ConfusionMatrix(0), InvalidArgument);
}

TEST(Mean, IsExactInAnyOrder) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::denorm_min();
  std::vector<float> values = {kLargest, 1,        -kLargest, kSmallest, 0.1F,   -1,
                               3e-39F,   kLargest, -kLargest, -0.1F,     -3e-39F};
  for (int order = 0; order < 20; ++order) {
    Mean mean({});
    for (const float value : values) mean.add(value);
    EXPECT_EQ(mean.value(), static_cast<double>(kSmallest) / 11) << "order " << order;
    EXPECT_EQ(mean.samples(), 11);
    std::shuffle(values.begin(), values.end(), std::mt19937(static_cast<unsigned>(order)));
  }
  Mean negative({});
  for (const float value : {0.25F, -1.5F, -0.25F}) negative.add(value);
  EXPECT_EQ(negative.value(), -0.5);
}

TEST(Mean, ShowsNaN) {
  Mean up({}), both({}), none({}), nan({});
  up.add(1), up.add(kInfinite);
  EXPECT_EQ(up.value(), kInfinite);
  both.add(kInfinite), both.add(-kInfinite);
  nan.add(kQuietNan);
  for (const Mean* const mean : {&both, &none, &nan}) EXPECT_TRUE(std::isnan(mean->value()));
}

TEST(Mean, RefusesAFunctionWithTheWrongNumberOfValues) {
  for (const std::size_t numbers : {std::size_t{0}, std::size_t{2}, std::size_t{6}}) {
    Mean mean([=](const Tensor&, const Tensor&) { return std::vector<float>(numbers, 1); });
    EXPECT_EQ(message_of([&] {
                mean.update(Tensor::zeros({3, 2}), Tensor::zeros({3}));
              }),
              "Mean::update: the function returned " + std::to_string(numbers) +
                  " numbers for 3 samples; it must return one for each");
  }
}

TEST(Mean, OfCrossEntropy) {
  Mean loss(cross_entropy_of_samples);
  loss.update(logits_of({0, std::log(3.0F), 1000, 1000}, 2), labels_of({1, 0}));
  EXPECT_NEAR(loss.value(), (std::log(4.0 / 3.0) + std::log(2.0)) / 2, 1e-7);
  EXPECT_EQ(cross_entropy_of_samples(logits_of({1e8F, 1e8F}, 2), labels_of({1})).front(), std::log(2.0F));
}

// Texts of three tokens with a label each. Padding does not count.
TEST(Metrics, SkipIgnoredLabels) {
  for (const std::int64_t ignored : {kIgnoreIndex, std::int64_t{0}}) {
    Accuracy accuracy(ignored);
    TopK top2(2, ignored);
    ConfusionMatrix matrix(3, ignored);
    MeanCrossEntropy loss(ignored);
    const Tensor logits =
        logits_of({1, 2, 3, /**/ 3, 2, 1, /**/ kQuietNan, 0, 0, /**/ 0, std::log(3.0F), -kInfinite}, 3);
    const Tensor labels = labels_of({2, 1, ignored, 1});
    for (const Shape& texts : {Shape{4}, Shape{2, 2}}) {
      for (Metric* const metric : std::initializer_list<Metric*>{&accuracy, &top2, &matrix, &loss}) {
        metric->reset();
        metric->update(logits.reshaped(texts.dims() == 1 ? Shape{4, 3} : Shape{2, 2, 3}), labels.reshaped(texts));
      }
      EXPECT_EQ(accuracy.samples(), 3);
      EXPECT_EQ(accuracy.correct(), 2);
      EXPECT_EQ(top2.correct(), 3);
      EXPECT_EQ(matrix.at(1, 0), 1);
      EXPECT_EQ(matrix.at(1, 1), 1);
      EXPECT_EQ(loss.samples(), 3);
      EXPECT_NEAR(loss.value(), (0.407606 + 1.407606 + std::log(4.0 / 3.0)) / 3, 1e-6);
    }
  }
  MeanCrossEntropy padding;
  padding.update(logits_of({1, 2, 3}, 3), labels_of({kIgnoreIndex}));
  EXPECT_TRUE(std::isnan(padding.value()));
  EXPECT_EQ(message_of([&] {
              padding.update(logits_of({1, 2, 3}, 3), labels_of({3}));
            }),
            "MeanCrossEntropy: the label 3 of sample 0 of the batch is outside 0..2, and is not ignore_index, -100");
}

TEST(RegressionMetrics, AreMeansOverAllElements) {
  MeanSquaredError squared;
  MeanAbsoluteError absolute;
  EXPECT_TRUE(std::isnan(squared.value()));
  for (const float offset : {0.0F, 2.0F})
    for (Metric* const metric : std::initializer_list<Metric*>{&squared, &absolute})
      metric->update(Tensor::full({2, 2}, 1 + offset), Tensor::full({2, 2}, 2));
  EXPECT_EQ(squared.value(), 1);
  EXPECT_EQ(squared.samples(), 8);
  EXPECT_EQ(absolute.value(), 1);
  squared.update(Tensor::full({8}, 5), Tensor::full({8}, 2));
  EXPECT_EQ(squared.value(), 5);
  EXPECT_EQ(squared.root(), std::sqrt(5.0));
  EXPECT_EQ(squared.better(), Mode::kLess);
  EXPECT_EQ(message_of([&] { squared.update(Tensor::full({2}, 1), Tensor::full({3}, 1)); }),
            "MeanSquaredError: expected outputs and targets of one shape, float32, got float32 (2) and float32 (3)");
}

// `size` points of three coordinates, in three classes.
class Points : public data::FixedShapeDataset {
 public:
  explicit Points(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  std::vector<data::TensorSpec> element_spec() const override { return {{{3}}, {{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t, const data::Row& row) const override {
    Philox random(7, static_cast<std::uint64_t>(index));
    for (float& coordinate : row.span<float>(0)) coordinate = random.uniform(-1.F, 1.F);
    row.value<std::int64_t>(1) = index % 3;
  }

 private:
  std::int64_t size_;
};

struct Result {
  std::vector<std::int64_t> counts;
  double loss;
  std::int64_t samples;
  bool operator==(const Result&) const = default;
};

// The points are used as logits, so their bits do not depend on the batch.
Result evaluated(const Points& points, std::int64_t batch, const std::shared_ptr<ProcessGroup>& group) {
  Accuracy accuracy;
  TopK top2(2);
  ConfusionMatrix matrix(3);
  Mean loss(cross_entropy_of_samples);
  const std::int64_t samples = evaluate([](const Tensor& inputs) { return inputs; }, points,
                                        {&accuracy, &top2, &matrix, &loss}, {.batch_size = batch, .group = group});
  Result result{{accuracy.correct(), accuracy.samples(), top2.correct()}, loss.value(), samples};
  for (const std::int64_t count : matrix.counts()) result.counts.push_back(count);
  return result;
}

TEST(Evaluate, GivesTheSameBitsForAnyNumberOfRanksAndEachSampleCountsOnce) {
  for (const std::int64_t size : {1, 2, 7, 100}) {
    const Points points(size);
    const Result alone = evaluated(points, 1000, nullptr);
    EXPECT_EQ(alone.samples, size);
    EXPECT_EQ(alone.counts[1], size);
    for (const int ranks : {1, 2, 3, 7})
      for (const std::int64_t batch : {1, 3})
        testing::expect_all_well(testing::run_ranks(ranks, "shm", [&](auto group) {
          EXPECT_EQ(evaluated(points, batch, group), alone)
              << size << " samples, " << ranks << " ranks, batches of " << batch;
        }));
  }
}

TEST(Evaluate, AModuleIsInEvaluationModeMeanwhileAndRecordsNoTape) {
  struct Spy : nn::Module {
    nn::Linear out{3, 3};
    bool throws = false;
    Spy() { add("out", out); }
    Tensor forward(const Tensor& x) override {
      EXPECT_FALSE(is_training());
      EXPECT_TRUE(NoGrad::active());
      if (throws) throw std::runtime_error("a forward that fails");
      return out(x);
    }
  };
  Spy spy;
  Accuracy accuracy;
  const Points points(10);
  EXPECT_EQ(evaluate(spy, points, {&accuracy}, {.batch_size = 4}), 10);
  EXPECT_EQ(accuracy.samples(), 10);
  EXPECT_TRUE(spy.is_training());
  spy.throws = true;
  EXPECT_THROW(evaluate(spy, points, {&accuracy}), std::runtime_error);
  EXPECT_TRUE(spy.is_training());
  EXPECT_FALSE(NoGrad::active());
  EXPECT_THROW(evaluate(spy, points, {&accuracy}, {.batch_size = 0}), InvalidArgument);
}

TEST(Evaluate, RefusesANullMetricOrFunction) {
  const data::TensorDataset set({Tensor::zeros({4, 2}), Tensor::zeros({4})});
  Mean mean([](const Tensor& outputs, const Tensor&) {
    return std::vector<float>(static_cast<std::size_t>(outputs.shape()[0]), 1);
  });
  nn::Linear model(2, 1);
  EXPECT_EQ(message_of([&] { evaluate(model, set, {&mean, nullptr}); }), "evaluate: metric 1 of 2 is null");
  EXPECT_EQ(message_of([&] { evaluate(std::function<Tensor(const Tensor&)>(), set, {&mean}); }),
            "evaluate: the function that computes outputs is empty");
}

TEST(Evaluate, AnExceptionOfOneRankReachesAll) {
  struct Failing : nn::Module {
    const char* text = nullptr;
    Tensor forward(const Tensor& x) override {
      if (text != nullptr) throw FileError("{}", text);
      return x;
    }
  };
  const Points points(10);
  for (const bool predicts : {false, true}) {
    const auto failures = testing::run_ranks(3, "shm", [&](auto group) {
      Failing model;
      if (group->rank() == 2) model.text = "the disk of rank 2 is full";
      Accuracy accuracy;
      if (predicts)
        predict(model, points, {.group = group});
      else
        evaluate(model, points, {&accuracy}, {.group = group});
    });
    EXPECT_THAT(failures, ::testing::Each(::testing::HasSubstr("the disk of rank 2 is full")));
    EXPECT_THAT(failures[0], ::testing::HasSubstr("rank 2 aborted the group"));
  }
}

}  // namespace
}  // namespace lockstep::train
