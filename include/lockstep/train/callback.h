// Common callbacks. callback_base.h has the base class for your own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/optim/schedule.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/callback_base.h"
#include "lockstep/train/monitor.h"
#include "lockstep/train/save_options.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct CheckpointOptions {
  std::string monitor = "val_loss";  // for best_only
  Mode mode = Mode::kAuto;
  bool best_only = false;  // save only epochs that are the best so far
  std::int64_t every_epochs = 1;
  std::int64_t every_steps = 0;  // also saves within epochs, every so many steps; 0: at their ends only
  int keep = 2;                  // number of checkpoints that are kept
  SaveOptions save = {};         // .background, .on_error, .keep_for
};

// Saves a checkpoint (train/checkpoint.h) at the end of an epoch, or every so many steps, for Trainer::load(). Checks
// before the training that the folder is writable; if its disk fails later, the training goes on unless .save.on_error
// is kStop.
class ModelCheckpoint : public Callback {
 public:
  // InvalidArgument: every_epochs or keep below 1, every_steps below 0 or with best_only.
  explicit ModelCheckpoint(std::string folder, const CheckpointOptions& options = {});
  void check(const Trainer& trainer) override;
  void on_train_begin(Trainer& trainer) override;
  void on_step_checkpoint(Trainer& trainer, std::int64_t step) override;
  void on_checkpoint(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  std::string state_name() const override;
  CallbackState state() const override;
  void restore(Trainer& trainer, const CallbackState& state) override;

 private:
  std::string folder_;
  CheckpointOptions options_;
  Monitor monitor_;
};

struct PreemptionOptions {
  std::int64_t every_steps = 1;  // steps between two calls of Strategy::should_stop()
  int keep = 2;                  // number of checkpoints that are kept
  SaveOptions save = {};         // .on_error, .keep_for; the training waits for the save in any case
};

// Ends a training that a scheduler interrupts without losing work: once a rank, or lockrun, has received SIGTERM or
// SIGUSR2 (comm/should_stop.h), all ranks save a checkpoint after the same step, and fit() returns. A signal before
// on_train_begin() ends the rank as usual. The step, or validation, in progress has to fit into the grace period.
//   trainer.fit(set, {.callbacks = {std::make_shared<train::Preemption>("run/ckpt")}});
//   if (trainer.is_preempted()) return ls::kPreemptedExitCode;   // started again, it continues: see Trainer::load()
class Preemption : public Callback {
 public:
  explicit Preemption(std::string folder, const PreemptionOptions& options = {});  // InvalidArgument: below 1
  void on_train_begin(Trainer& trainer) override;
  void on_step_checkpoint(Trainer& trainer, std::int64_t step) override;

 private:
  std::string folder_;
  PreemptionOptions options_;
};

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  Mode mode = Mode::kAuto;
  double min_delta = 0;
  std::int64_t patience = 0;          // ends after this many epochs in a row without a better value; 0: after the first
  bool restore_best_weights = false;  // also when the training runs to its last epoch
};

class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  void check(const Trainer& trainer) override;
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  void on_train_end(Trainer& trainer) override;
  std::string state_name() const override;
  CallbackState state() const override;  // includes the best weights if they are kept
  void restore(Trainer& trainer, const CallbackState& state) override;
  std::int64_t best_epoch() const { return best_epoch_; }  // -1: none yet

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0, best_epoch_ = -1;
  std::vector<NamedTensor> best_;  // copies of the best weights
};

// Sets the learning rate of each step by a schedule of optim/schedule.h, as a function of the trainer's step.
class LearningRate : public Callback {
 public:
  explicit LearningRate(optim::Schedule rate) : rate_(std::move(rate)) {}
  void on_step_begin(Trainer& trainer, std::int64_t step) override;

 private:
  optim::Schedule rate_;
};

struct ReduceOnPlateauOptions {
  std::string monitor = "val_loss";
  Mode mode = Mode::kAuto;
  double min_delta = 1e-4;
  std::int64_t patience = 10;
  float factor = 0.1F, min_lr = 0;
};

// Multiplies the learning rate by `factor` after `patience` epochs without a better value, down to min_lr. Each fit()
// starts a new count, unless it resumes from a checkpoint.
class ReduceOnPlateau : public Callback {
 public:
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});  // InvalidArgument: a factor outside (0, 1)
  void check(const Trainer& trainer) override;
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  std::string state_name() const override;
  CallbackState state() const override;
  void restore(Trainer& trainer, const CallbackState& state) override;

 private:
  ReduceOnPlateauOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0;
};

// Writes each epoch's logs as scalars ("loss/train", "loss/validation", "lr") with a SummaryWriter. When the training
// begins, TensorBoard drops the folder's data from that epoch on.
class TensorBoard : public Callback {
 public:
  explicit TensorBoard(std::string log_dir) : log_dir_(std::move(log_dir)), writer_(SummaryWriter::none()) {}
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  void on_train_end(Trainer& trainer) override;

 private:
  std::string log_dir_;
  SummaryWriter writer_;
};

}  // namespace lockstep::train
#pragma GCC visibility pop
