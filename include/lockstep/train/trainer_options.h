// Options of a Trainer's calls (train/trainer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/pipeline.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/callback_base.h"
#include "lockstep/train/loss_function.h"
#include "lockstep/train/named_metric.h"
#include "lockstep/train/strategy.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct CompileOptions {
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<NamedTensor> parameters)> optimizer;
  // train/loss_function.h; losses that modules add (nn/added_losses.h) come on top, in training and evaluation.
  LossFunction loss;
  std::vector<NamedMetric> metrics = {};
  // A name of train::strategies(); empty: the scope's (train/strategy_scope.h), or else "ddp".
  std::string strategy = "";
  StrategyOptions strategy_options = {};  // leave empty in a scope, whose strategy has its own options
};

struct FitOptions {
  // Trains epochs initial_epoch ... epochs - 1; their numbers determine the samples.
  std::int64_t epochs = 1, initial_epoch = 0;
  std::optional<data::Pipeline> validation = {};  // evaluated after each epoch
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // For a training set without batch(): samples per step over all devices (0: 32), and whether each epoch has its own
  // order.
  std::int64_t batch_size = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  // 0: the entire set. Else epochs continue in the set where the previous one ended: epoch e begins at step e *
  // steps_per_epoch of consecutive passes over the set, each with its own order if it shuffles. A resumed training
  // continues at the same place.
  std::int64_t steps_per_epoch = 0;
  // true, or batch(n, {.drop_remainder = true}): full batches only. false, as in Keras: the last one may be smaller.
  bool drop_remainder = false;
  // Stop after this many steps of this call, as if more were to follow; 0: no limit. on_epoch_end() is called for a
  // part of an epoch, too, and again when the epoch is continued from a checkpoint.
  std::int64_t max_steps = 0;
  bool training_metrics = true;  // computed from the training outputs, with dropout and changing weights
  bool progress = true;          // rank 0 prints Keras' lines, see docs/trainer.md
  std::int64_t log_every = 20;   // steps between two lines of a log
};

struct PredictOptions {
  std::int64_t batch_size = 0;  // for a set without batch(), over all ranks; 0: 32
};

}  // namespace lockstep::train
#pragma GCC visibility pop
