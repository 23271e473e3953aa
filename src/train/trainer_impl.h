// What the files of Trainer share.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/trainer.h"
#include "src/ddp/failure.h"

namespace lockstep::train {

struct Trainer::Impl {
  std::function<std::unique_ptr<nn::Module>()> make_model;
  CompileOptions options = {};
  std::unique_ptr<Strategy> strategy = {};  // null before compile()

  // Metrics of the training: the strategy's threads count, one at a time, what they give to the loss.
  std::vector<NamedMetric::Running> metrics = {};
  std::mutex counting = {};
  bool counts = false;

  Tensor loss(const Tensor& outputs, const Tensor& targets);
  std::vector<Metric*> training_metrics() const;

  // Throws InvalidArgument before compile().
  Strategy& compiled(const char* call) const;
  std::shared_ptr<ProcessGroup> group() const;
  // Those who share the samples out: the ranks under ddp; otherwise this process alone.
  Place place() const;
  bool has_ranks() const { return options.strategy == "ddp" || options.strategy == "zero"; }
  // That divide a step's samples: ranks, or devices.
  std::int64_t parts() const;
  // Where batches go that the strategy cuts or takes.
  Device* batch_device() const;

  // With batches. Throws InvalidArgument for an empty set, for one without targets where they are wanted, for both kinds of batch sizes.
  data::Pipeline batched(const char* call, const data::Pipeline& set, std::int64_t batch_size, bool wants_targets) const;
  EvaluateOptions evaluation(const data::Pipeline& set) const;
  Logs evaluate(const data::Pipeline& set) const;

  // Ends the group when this rank alone fails: the others are told why, and do not wait for it.
  template <typename Call>
  auto guarded(const Call& call) const {
    return or_end_group(group().get(), call);
  }
};

}  // namespace lockstep::train
