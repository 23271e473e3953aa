// Metrics of an evaluation, exact over ranks: each is a row of whole numbers, which ranks add up. So a metric of the
// same outputs is the same to the last bit for any number of ranks and any batches.
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
namespace lockstep {

namespace train {
// Which of two values is the better one.
enum class Mode {
  kAuto,  // as the metric says, or the name where it is one of those that monitor.h lists; otherwise it is an error
          // that asks for the mode
  kLess,
  kMore
};
}  // namespace train

class Metric {
 public:
  virtual ~Metric() = default;
  // Takes a batch in: what the model gave, and the targets. Both are on the CPU.
  virtual void update(const Tensor& outputs, const Tensor& targets) = 0;
  // The whole of what the metric knows: numbers that are added over batches, and over ranks.
  virtual std::span<std::int64_t> counts() = 0;
  // Whether more or less is better, for callbacks that keep the best epoch. kAuto: the metric does not say.
  virtual train::Mode better() const { return train::Mode::kAuto; }
  void reset();
};

// Adds up the metrics' counts over the ranks of the group, which all give the same metrics: one call. Collective; null:
// a job of one.
void reduce_metrics(std::span<Metric* const> metrics, ProcessGroup* group);

// The next four are of logits (..., K), float32, and labels (...), int64 in [0, K): InvalidArgument otherwise. A row
// whose label is ignore_index, say padding, is no sample. A class is predicted before all those with smaller logits,
// and those with equal ones behind it. A row with a NaN predicts nothing: it counts as wrong.

// The share of samples whose label is among the k classes predicted first. NaN before there is a sample.
class TopK : public Metric {
 public:
  explicit TopK(std::int64_t k, std::int64_t ignore_index = kIgnoreIndex);  // InvalidArgument: k below 1
  void update(const Tensor& logits, const Tensor& labels) override;
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t correct() const { return counts_[0]; }
  std::int64_t samples() const { return counts_[1]; }
  double value() const;
  train::Mode better() const override { return train::Mode::kMore; }

 private:
  std::int64_t k_, ignore_index_;
  std::int64_t counts_[2] = {};
};

class Accuracy : public TopK {
 public:
  explicit Accuracy(std::int64_t ignore_index = kIgnoreIndex) : TopK(1, ignore_index) {}
};

// How many samples of each class were predicted as each class.
class ConfusionMatrix : public Metric {
 public:
  explicit ConfusionMatrix(std::int64_t classes,
                           std::int64_t ignore_index = kIgnoreIndex);  // InvalidArgument: classes below 1
  void update(const Tensor& logits, const Tensor& labels) override;
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t at(std::int64_t label, std::int64_t predicted) const;
  std::int64_t unpredicted(std::int64_t label) const;  // rows with a NaN
  // The share of a class's samples that were predicted as it, and of those predicted as it that are of it; NaN where
  // there is none.
  double recall(std::int64_t label) const;
  double precision(std::int64_t predicted) const;

 private:
  void check_class(std::int64_t index) const;

  std::int64_t classes_, ignore_index_;
  std::vector<std::int64_t> counts_;  // (classes, classes + 1)
};

// The mean of one number a sample. The sum is exact, whatever the order: it is kept in whole numbers, as wide as
// float32's range. Infinities and NaN make the mean such.
class Mean : public Metric {
 public:
  // The numbers of a batch, float32 on the CPU: as many as `outputs` has samples, else update() throws InvalidArgument.
  using Values = std::function<std::vector<float>(const Tensor& outputs, const Tensor& targets)>;
  explicit Mean(Values values, train::Mode better = train::Mode::kAuto);
  void update(const Tensor& outputs, const Tensor& targets) override;
  void add(float value);
  std::span<std::int64_t> counts() override { return counts_; }
  std::int64_t samples() const;
  double value() const;  // NaN before there is a sample
  train::Mode better() const override { return better_; }

 private:
  Values values_;
  train::Mode better_;
  std::vector<std::int64_t> counts_;
};

// -log softmax(logits)[label] of each sample, in double and rounded once. For Mean. Logits (N, K) and labels (N) in [0,
// K).
std::vector<float> cross_entropy_of_samples(const Tensor& logits, const Tensor& labels);

// Their mean over all rows of logits (..., K) whose label is not ignore_index: of a text, over its tokens. NaN before
// there is one.
class MeanCrossEntropy : public Mean {
 public:
  explicit MeanCrossEntropy(std::int64_t ignore_index = kIgnoreIndex);
  void update(const Tensor& logits, const Tensor& labels) override;

 private:
  std::int64_t ignore_index_;
};

}  // namespace lockstep
#pragma GCC visibility pop
