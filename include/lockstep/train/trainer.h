// Trainer: a model, an optimizer, a loss and metrics, trained by one call, on whatever devices the strategy has. Its
// calls are called as Keras' are.
//
//   train::Trainer trainer([] { return std::make_unique<Net>(); });
//   trainer.compile({.optimizer = [](auto parameters) { return std::make_unique<optim::Nadam>(std::move(parameters));
//   },
//                    .loss = [](const Tensor& outputs, const Tensor& targets) { return nn::cross_entropy(outputs,
//                    targets); }, .metrics = {{"accuracy", Accuracy()}}, .strategy = "ddp"});
//   trainer.fit(data::Pipeline(train).shuffle().batch(32), {.epochs = 10, .validation =
//   data::Pipeline(validation).batch(32)});
//
// docs/trainer.md has a whole program. A loop of one's own over train::make_strategy(), or DistributedDataParallel,
// does all of this too.
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
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/history.h"
#include "lockstep/train/named_metric.h"
#include "lockstep/train/strategy.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct CompileOptions {
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor> parameters)> optimizer;
  std::function<Tensor(const Tensor& outputs, const Tensor& targets)>
      loss;  // a scalar: the mean over the samples it is given
  std::vector<NamedMetric> metrics = {};
  std::string strategy =
      "";  // a name of train::strategies(); empty: of the scope (train/strategy_scope.h), without one "ddp"
  StrategyOptions strategy_options = {};  // none in a scope, whose strategy has its own
};

struct FitOptions {
  std::int64_t epochs = 1,
               initial_epoch = 0;  // trains epochs initial_epoch ... epochs - 1, by whose numbers the samples go
  std::optional<data::Pipeline> validation = {};  // after each epoch
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // Of a training set without batch(): samples of a step, over all devices (0: 32), and whether they come in an order
  // of each epoch's own.
  std::int64_t batch_size = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  // 0: the whole set. Fewer: an epoch goes on in the set where the one before it ended: epoch e begins at step e *
  // steps_per_epoch of all passes over the set, each of which has an order of its own where it shuffles. So a training
  // that resumes goes on there, too.
  std::int64_t steps_per_epoch = 0;
  std::int64_t max_steps = 0;    // ends after so many, as if the rest were to follow; 0: all
  bool training_metrics = true;  // of the outputs as they were in training, with dropout and weights that still changed
  bool progress = true;          // rank 0 prints
  std::int64_t log_every = 20;   // steps between two lines of a log
};

struct PredictOptions {
  std::int64_t batch_size = 0;  // of a set without batch(), over all ranks; 0: 32
};

// Used from one thread; collective where the strategy has ranks (ddp): all make the same calls. Before compile() only
// summary() can be called; InvalidArgument otherwise. What one rank alone finds wrong in a call's arguments is an error
// on all, and the group goes on. What it throws later, in fit(), evaluate() or predict(), ends the group: the others
// throw PeerLost with the same text.
class Trainer {
 public:
  // The function makes the model, once for each replica (strategy.h). In a scope (train/strategy_scope.h): to train by
  // its strategy.
  explicit Trainer(std::function<std::unique_ptr<nn::Module>()> model);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Makes the model and the strategy: weights, step and history begin anew. Throws InvalidArgument as make_strategy()
  // does, for a strategy of one process in a job of several ranks, a metric without a name or with one that is taken,
  // and in another scope.
  void compile(CompileOptions options);

  // Trains whole batches: the samples that are left at an epoch's end, others in each epoch where it shuffles, are left
  // out. So all strategies, over any number of devices, take the same samples in each step. The model is put into
  // training mode; modules that are in eval mode within a model that trains stay so. An epoch adds a line to the
  // history. A loss that is no finite number is an Error that names the step. InvalidArgument: an empty set, one
  // without targets, a batch that is larger than the set or that the devices do not divide, batch_size beside batch(),
  // epochs that are none.
  const History& fit(const data::Pipeline& training, const FitOptions& options = {});

  // "loss" and metrics over the whole set, each sample once, shared out to the ranks; in evaluation mode. Metrics are
  // exact whatever the number of ranks, the loss is rounded by batches. InvalidArgument: an empty set, or one without
  // targets.
  Logs evaluate(const data::Pipeline& set, const PredictOptions& options = {});

  // The outputs (N, ...) of all samples in their order, float32, on the CPU of each rank; targets are not looked at.
  Tensor predict(const data::Pipeline& set, const PredictOptions& options = {});

  // The model as a table: layers, output shapes, numbers of parameters, totals. `samples`: the inputs' shapes without
  // the batch, which is printed as None. Runs a forward pass as nn::summary(). Before compile() of a model that is made
  // for it.
  //   trainer.summary({{{300}, DType::kInt64}});
  std::string summary(std::initializer_list<nn::InputSpec> samples);

  // Checkpoints (train/checkpoint.h) of model, optimizer, position, history and the state of the last fit's callbacks.
  // load() takes the newest, also of another strategy or number of ranks, and returns nullopt where there is none; go
  // on with fit(..., {.initial_epoch = state->epoch}), whose callbacks go on as well. A fit() that begins elsewhere has
  // them begin anew, and warns.
  std::string save(const std::string& folder, int keep = 2);
  std::optional<CheckpointState> load(const std::string& folder);

  // To be called by callbacks: fit() ends with this epoch, on all ranks if one of them says so.
  void stop() { stops_ = true; }
  // The weights of model(), which the caller has changed, to all replicas. On all ranks alike.
  void weights_changed();

  // What a metric given to compile() says of that name, with or without "val_"; of "loss" kLess; else kAuto.
  Mode mode_of(const std::string& name) const;

  Strategy& strategy();
  nn::Module& model() { return strategy().model(); }
  void set_lr(float lr) { strategy().set_lr(lr); }
  std::shared_ptr<ProcessGroup> group() const;  // null: a job of one
  bool is_first_rank() const;                   // prints and writes
  std::int64_t step() const { return step_; }   // steps done, over all fits
  // Epochs done: of the fit under way or the last one, or of what was loaded; which is the number of the next one, as
  // they count from 0.
  std::int64_t epoch() const { return epoch_; }
  const History& history() const { return history_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  History history_;
  std::int64_t step_ = 0, epoch_ = 0;
  bool stops_ = false;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
