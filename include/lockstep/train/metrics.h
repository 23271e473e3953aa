// Evaluation metrics that are exact over ranks. Each is a row of integers that the ranks add up, so a metric of the
// same outputs has the same bits for any number of ranks and any batches.
//
//   Accuracy accuracy;  TopK top5(5);  Mean loss(cross_entropy_of_samples);
//   evaluate(net, test, {&accuracy, &top5, &loss}, {.device = &device});      // train/evaluate.h
//   accuracy.value();
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/operator_shapes.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Decides which of two values is better.
enum class Mode {
  kAuto,  // by the metric, or by its name if monitor.h lists it; else an error that requests a mode
  kLess,
  kMore
};

class Metric {
 public:
  virtual ~Metric() = default;
  // Accumulates a batch: the model's outputs and the targets, both on the CPU.
  virtual void update(const Tensor& outputs, const Tensor& targets) = 0;
  // The metric's entire state: numbers that are added over batches and over ranks.
  virtual std::span<std::int64_t> counts() = 0;
  // Whether more or less is better, for callbacks that keep the best epoch. kAuto: unknown.
  virtual Mode better() const { return Mode::kAuto; }
  void reset();
};

// Collective. Adds the metrics' counts over the ranks of the group in one call; all ranks must pass the same metrics.
// Null: a job of one rank.
void reduce_metrics(std::span<Metric* const> metrics, ProcessGroup* group);

// The next four take float32 logits (..., K) and int64 labels (...) in [0, K), else throw InvalidArgument. Rows whose
// label is ignore_index, such as padding, are skipped. Classes are ranked by descending logit, with equal logits by
// ascending class. A row with a NaN predicts nothing and counts as wrong.

// The share of samples whose label is among the k classes with the highest rank. NaN without samples.
class TopK : public Metric {
 public:
  explicit TopK(std::int64_t k, std::int64_t ignore_index = kIgnoreIndex);  // InvalidArgument: k below 1
  void update(const Tensor& logits, const Tensor& labels) override;
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t correct() const { return counts_[0]; }
  std::int64_t samples() const { return counts_[1]; }
  double value() const;
  Mode better() const override { return Mode::kMore; }

 private:
  std::int64_t k_, ignore_index_;
  std::int64_t counts_[2] = {};
};

class Accuracy : public TopK {
 public:
  explicit Accuracy(std::int64_t ignore_index = kIgnoreIndex) : TopK(1, ignore_index) {}
};

// Counts how many samples of each class were predicted as each class.
class ConfusionMatrix : public Metric {
 public:
  // InvalidArgument: classes below 1.
  explicit ConfusionMatrix(std::int64_t classes, std::int64_t ignore_index = kIgnoreIndex);
  void update(const Tensor& logits, const Tensor& labels) override;
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  std::int64_t unpredicted(std::int64_t label) const;  // rows with a NaN
  // Recall: the share of a class's samples that were predicted as it. Precision: the share of the samples predicted as
  // a class that belong to it. NaN without such samples.
  double recall(std::int64_t label) const;
  double precision(std::int64_t predicted) const;

 private:
  void check_class(std::int64_t index) const;

  std::int64_t classes_, ignore_index_;
  std::vector<std::int64_t> counts_;  // (classes, classes + 1)
};

// The mean of one number per sample. The sum is exact and independent of the order: it is an integer as wide as
// float32's range. Infinities and NaN make the mean infinite or NaN.
class Mean : public Metric {
 public:
  // Returns the numbers of a batch, float32 on the CPU: one per sample of `outputs`, else update() throws
  // InvalidArgument.
  using Values = std::function<std::vector<float>(const Tensor& outputs, const Tensor& targets)>;
  explicit Mean(Values values, Mode better = Mode::kAuto);
  void update(const Tensor& outputs, const Tensor& targets) override;
  void add(float value);
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t samples() const;
  double value() const;  // NaN without samples
  Mode better() const override { return better_; }

 private:
  Values values_;
  Mode better_;
  std::vector<std::int64_t> counts_;
};

// Returns -log softmax(logits)[label] of each sample, computed in double and rounded once, for Mean. Logits (N, K) and
// labels (N) in [0, K).
std::vector<float> cross_entropy_of_samples(const Tensor& logits, const Tensor& labels);

// The mean of these values over all rows of logits (..., K) whose label is not ignore_index: for a text, over its
// tokens. NaN without such rows.
class MeanCrossEntropy : public Mean {
 public:
  explicit MeanCrossEntropy(std::int64_t ignore_index = kIgnoreIndex);
  void update(const Tensor& logits, const Tensor& labels) override;

 private:
  std::int64_t ignore_index_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
