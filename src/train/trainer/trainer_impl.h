// Shared by the Trainer's source files.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
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
#include "src/train/strategies/kinds.h"
#include "src/train/strategies/model_copies.h"
#include "src/train/strategies/served_calls.h"
#include "src/train/trainer/trainer_state.h"

namespace lockstep::train {

// The results of calls as bytes, for the servers.
std::string result_of(const Logs& logs);
Logs logs_of_result(const std::string& result);
std::string result_of(const Tensor& outputs);
Tensor tensor_of_result(const std::string& result);
std::string result_of(const std::optional<CheckpointState>& state);
std::optional<CheckpointState> state_of_result(const std::string& result);

// Returns a line for comparisons.
inline std::string sizes_text(const char* kind, const data::Pipeline& set) {
  return fmt::format(
      "{}a set of {} samples{} in batches of {}{}", kind, set.size(),
      set.is_shuffled()
          ? fmt::format(", shuffled with seed {}{},", set.shuffle_seed(),
                        set.shuffle_buffer() > 0 ? fmt::format(" and a buffer of {}", set.shuffle_buffer()) : "")
          : "",
      set.batch_size(), set.drops_remainder() ? ", without the remainder" : "");
}

struct Trainer::Impl {
  class Fit;  // one call of fit()

  std::function<std::unique_ptr<nn::Module>()> make_model;
  std::optional<StrategyChoice> scope = {};  // the scope in which the Trainer was made
  CompileOptions options = {};
  std::shared_ptr<ProcessGroup> job = {};   // the job that compile() joined; kept alive
  std::unique_ptr<Strategy> strategy = {};  // null before compile()

  // Metrics of the training. The strategy's threads update them, one at a time, with the arguments of the loss.
  std::vector<NamedMetric::Running> metrics = {};
  std::mutex counting = {};
  bool counts = false;
  int calls = 0;  // calls of served() within each other: a callback may save

  const std::vector<std::shared_ptr<Callback>>* callbacks = nullptr;  // of the fit in progress
  std::vector<SavedCallback> states = {};                             // of the last fit's callbacks, or as loaded
  bool states_are_loaded = false;                                     // and not yet used by a fit
  // In the epoch that the last fit() has not completed, or as loaded.
  std::optional<EpochPosition> position = {};
  bool has_failed_step = false;                                     // the last fit() ended in the middle of a step
  std::function<std::optional<EpochPosition>()> position_now = {};  // of the fit in progress; collective

  Tensor loss(nn::Module& model, const Tensor& outputs, const Tensor& targets);
  std::vector<Metric*> training_metrics() const;

  // Throws InvalidArgument before compile().
  Strategy& compiled(const char* call) const;
  std::shared_ptr<ProcessGroup> group() const;
  // The place among the processes that share the samples: the rank with ddp, else this process alone.
  Place place() const;
  bool has_ranks() const {
    const StrategyRow* const row = find_strategy(options.strategy);
    return row != nullptr && row->kind.capabilities.has_ranks;
  }
  ProcessGroup* ranks() const {
    return has_ranks() && group()->world_size() > 1 ? group().get() : nullptr;
  }  // null: one process
  // Calls compute(), a call of all ranks, and returns its result. On a server of the strategy: serves until all workers
  // have come to the end of the call, and returns worker 0's result, with its step, epoch and history for `trainer`; an
  // error of the workers is thrown.
  std::string served(Trainer& trainer, const std::function<std::string()>& compute);
  bool is_server() const { return strategy && strategy->as<CallServer>() != nullptr; }

  // The number of ranks or devices that divide a step's samples.
  std::int64_t parts() const;
  // The device for batches that the strategy divides or uses.
  Device* batch_device() const;

  // Returns the set with batches. Throws InvalidArgument for an empty set, for one without required targets, and for
  // two batch sizes.
  data::Pipeline batched(const char* call, const data::Pipeline& set, std::int64_t batch_size, bool wants_targets,
                         bool may_be_endless = false) const;
  // The same for all ranks, whose sets must have the same size. An error on one rank is an error on all.
  data::Pipeline batched_together(const char* call, const data::Pipeline& set, std::int64_t batch_size,
                                  bool wants_targets) const;
  EvaluateOptions evaluation(const data::Pipeline& set) const;
  Logs evaluate(const data::Pipeline& set) const;

  // Ends the group, and the job with its servers, if this rank fails: the others receive the reason and do not wait for
  // it.
  template <typename Call> auto guarded(const Call& call) const {
    const auto guarded_call = [&] { return abort_on_error(group(), call); };
    return strategy->as<CallWorker>() != nullptr ? abort_on_error(job, guarded_call) : guarded_call();
  }
};

}  // namespace lockstep::train
