// What the files of Trainer share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/strategy_scope.h"
#include "lockstep/train/trainer.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/trainer/trainer_state.h"

namespace lockstep::train {

// A line of what ranks must have in common.
inline std::string sizes_text(const char* kind, const data::Pipeline& set) {
  return fmt::format("{}a set of {} samples in batches of {}", kind, set.size(), set.batch_size());
}

struct Trainer::Impl {
  class Fit;  // one call of fit()

  std::function<std::unique_ptr<nn::Module>()> make_model;
  std::optional<StrategyChoice> scope = {};  // in which the Trainer was made
  CompileOptions options = {};
  std::shared_ptr<ProcessGroup> job = {};   // where compile() has joined it, it lasts as long as this
  std::unique_ptr<Strategy> strategy = {};  // null before compile()

  // Metrics of the training: the strategy's threads count, one at a time, what they give to the loss.
  std::vector<NamedMetric::Running> metrics = {};
  std::mutex counting = {};
  bool counts = false;

  const std::vector<std::shared_ptr<Callback>>* callbacks = nullptr;  // of the fit under way
  std::vector<SavedCallback> states = {};  // of the last fit's callbacks, or as load() found them
  bool states_are_loaded = false;          // and no fit has had them yet

  Tensor loss(const Tensor& outputs, const Tensor& targets);
  std::vector<Metric*> training_metrics() const;

  // Throws InvalidArgument before compile().
  Strategy& compiled(const char* call) const;
  std::shared_ptr<ProcessGroup> group() const;
  // Those who share the samples out: the ranks under ddp; otherwise this process alone.
  Place place() const;
  static bool is_of_ranks(const std::string& name) { return name == "ddp" || name == "zero"; }
  bool has_ranks() const { return is_of_ranks(options.strategy); }
  ProcessGroup* ranks() const {
    return has_ranks() && group()->world_size() > 1 ? group().get() : nullptr;
  }  // null: one process
  // That divide a step's samples: ranks, or devices.
  std::int64_t parts() const;
  // Where batches go that the strategy cuts or takes.
  Device* batch_device() const;

  // With batches. Throws InvalidArgument for an empty set, for one without targets where they are wanted, for both
  // kinds of batch sizes.
  data::Pipeline batched(const char* call, const data::Pipeline& set, std::int64_t batch_size,
                         bool wants_targets) const;
  // The same on all ranks, of sets of one size, or an error on all.
  data::Pipeline batched_together(const char* call, const data::Pipeline& set, std::int64_t batch_size,
                                  bool wants_targets) const;
  EvaluateOptions evaluation(const data::Pipeline& set) const;
  Logs evaluate(const data::Pipeline& set) const;

  // Ends the group when this rank alone fails: the others are told why, and do not wait for it.
  template <typename Call>
  auto guarded(const Call& call) const {
    return abort_on_error(group(), call);
  }
};

}  // namespace lockstep::train
