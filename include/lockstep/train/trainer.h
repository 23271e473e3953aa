// Trainer: trains a model with an optimizer, a loss and metrics in one call, on the devices of a strategy. The methods
// have the same names as in Keras.
//
//   train::Trainer trainer([] { return std::make_unique<Net>(); });
//   trainer.compile({.optimizer = [](auto weights) { return std::make_unique<optim::Nadam>(std::move(weights)); },
//                    .loss = [](const Tensor& y, const Tensor& targets) { return nn::cross_entropy(y, targets); },
//                    .metrics = {{"accuracy", Accuracy()}},
//                    .strategy = "ddp"});
//   trainer.fit(data::Pipeline(train).shuffle().batch(32),
//               {.epochs = 10, .validation = data::Pipeline(test).batch(32)});
//
// docs/trainer.md has a complete program. You can do the same in your own loop over train::make_strategy() or
// DistributedDataParallel.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/pipeline.h"
#include "lockstep/nn/module.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/history.h"
#include "lockstep/train/strategy.h"
#include "lockstep/train/trainer_options.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

// Use it from one thread. If the strategy has ranks (ddp) the calls are collective: all ranks make the same ones.
// Before compile() only summary() may be called, else InvalidArgument is thrown. If one rank finds an error in a call's
// arguments, all ranks throw and the group stays usable. A later exception on one rank ends the group: the others throw
// PeerLost with the same text. On a server of parameter_server the calls serve, and return worker 0's result.
class Trainer {
 public:
  // The function makes the model, once per replica (strategy.h). In a scope (train/strategy_scope.h), the scope's
  // strategy trains it.
  explicit Trainer(std::function<std::unique_ptr<nn::Module>()> model);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Makes the model and the strategy, and resets weights, step and history. Throws InvalidArgument where
  // make_strategy() does, for a single-process strategy in a job of several ranks, for a metric with an empty or
  // duplicate name, and in another scope.
  void compile(CompileOptions options);

  // Trains on each sample of an epoch once. The parts of the last batch on devices or ranks may differ by one sample,
  // or have none; they are weighted by their samples (the loss must be a mean over samples), so that all strategies,
  // with any number of devices, make the same steps. Puts the model into training mode, except modules that are in eval
  // mode inside a model in training mode. Each epoch is added to the history: its loss is the mean over all samples.
  // Throws Error with the step if the loss is NaN or infinite, and InvalidArgument for an empty set or one without
  // targets, a batch that the devices do not divide or, with drop_remainder, that is larger than the set, batch_size
  // together with batch(), and an invalid range of epochs.
  const History& fit(const data::Pipeline& training, const FitOptions& options = {});

  // Returns "loss" and metrics over the entire set, each sample once, divided among the ranks, in evaluation mode.
  // Metrics are exact with any number of ranks; the loss is rounded per batch. Throws InvalidArgument for an empty set
  // or one without targets.
  Logs evaluate(const data::Pipeline& set, const PredictOptions& options = {});

  // Returns the outputs (N, ...) of all samples in order, float32, on the CPU of each rank. Targets are ignored.
  Tensor predict(const data::Pipeline& set, const PredictOptions& options = {});

  // Returns the model as a table: layers, output shapes, numbers of parameters, totals. `samples`: the inputs' shapes
  // without the batch, which is printed as None. Runs a forward pass like nn::summary(). Before compile(), makes a
  // model for it.
  //   trainer.summary({{{300}, DType::kInt64}});
  std::string summary(std::initializer_list<nn::InputSpec> samples);

  // Save and load checkpoints (train/checkpoint.h) of model, optimizer, position, history and the state of the last
  // fit's callbacks. load() takes the newest, also from another strategy or number of ranks, and returns nullopt if
  // there is none. Continue with fit(..., {.initial_epoch = state->epoch}); then the callbacks continue too. A fit()
  // that begins at another epoch resets them and logs a warning.
  //
  // A checkpoint that was saved within an epoch continues after its last step, in the middle of the epoch: no sample is
  // lost or repeated, and the epoch's loss and metrics include the steps before. With the same number of ranks all bits
  // are those of a training without interruption. fit() must have the same set and steps per epoch, else it throws
  // InvalidArgument with the difference. FitOptions::max_steps counts the steps of each call.
  std::string save(const std::string& folder, int keep = 2, const SaveOptions& options = {});
  std::optional<CheckpointState> load(const std::string& folder);

  // For callbacks: fit() ends after this epoch, on all ranks if one of them calls it.
  void stop() { stops_ = true; }
  // For callbacks, on all ranks in the same step: fit() returns after this step, in the middle of the epoch, without
  // validation and without on_train_end(). The epoch is not in the history. If only some ranks call it, the others'
  // next collective call ends with MismatchError or PeerLost.
  void preempt() { is_preempted_ = true; }
  // For on_step_end() and on_step_checkpoint(): whether the step is the last one of its epoch.
  bool is_last_step() const { return is_last_step_; }
  // Whether preempt() ended the last fit(), also on servers. A program then ends with kPreemptedExitCode.
  bool is_preempted() const { return is_preempted_; }
  // Copies the weights of model(), which the caller has changed, to all replicas. Call it on all ranks.
  void weights_changed();

  // Returns the mode of the compiled metric of that name, with or without "val_"; kLess for "loss"; else kAuto.
  Mode mode_of(const std::string& name) const;

  Strategy& strategy();
  nn::Module& model() { return strategy().model(); }
  void set_lr(float lr) { strategy().set_lr(lr); }
  std::shared_ptr<ProcessGroup> group() const;  // null: a job of one rank
  bool is_first_rank() const;                   // the rank that prints and writes
  std::int64_t step() const { return step_; }   // completed steps, over all fits
  // Completed epochs of the current or last fit, or of the loaded checkpoint. As they count from 0, this is the number
  // of the next one.
  std::int64_t epoch() const { return epoch_; }
  const History& history() const { return history_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  History history_;
  std::int64_t step_ = 0, epoch_ = 0;
  bool stops_ = false, is_preempted_ = false, is_last_step_ = false;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
