// The callbacks that most trainings want; callback_base.h has the class that one of your own derives from.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/optim/schedule.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/callback_base.h"
#include "lockstep/train/monitor.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

struct CheckpointOptions {
  std::string monitor = "val_loss";  // of best_only
  Mode mode = Mode::kAuto;
  bool best_only = false;  // only epochs that are the best so far
  std::int64_t every_epochs = 1;
  int keep = 2;  // checkpoints that stay
};

// A checkpoint (train/checkpoint.h) at the end of an epoch, for Trainer::load(). Tries the folder before the training.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(std::string folder, const CheckpointOptions& options = {});
  void check(const Trainer& trainer) override;
  void on_train_begin(Trainer& trainer) override;
  void on_checkpoint(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  std::string state_name() const override;
  CallbackState state() const override;
  void restore(Trainer& trainer, const CallbackState& state) override;

 private:
  std::string folder_;
  CheckpointOptions options_;
  Monitor monitor_;
};

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  Mode mode = Mode::kAuto;
  double min_delta = 0;
  std::int64_t patience = 0;          // ends after so many epochs in a row without a better value; 0: after the first
  bool restore_best_weights = false;  // also where the training ran to its last epoch
};

class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  void check(const Trainer& trainer) override;
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  void on_train_end(Trainer& trainer) override;
  std::string state_name() const override;
  CallbackState state() const override;  // with the best weights, where they are kept
  void restore(Trainer& trainer, const CallbackState& state) override;
  std::int64_t best_epoch() const { return best_epoch_; }  // -1: none yet

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0, best_epoch_ = -1;
  std::vector<NamedTensor> best_;  // copies
};

// The rate of each step by a schedule of optim/schedule.h, which counts the trainer's steps.
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

// The rate times `factor` after `patience` epochs without a better value, never below min_lr; a rate that is there
// already stays. Each fit() counts anew, unless it goes on from a checkpoint.
class ReduceOnPlateau : public Callback {
 public:
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});  // InvalidArgument: a factor outside of (0, 1)
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

// Each epoch's logs as scalars ("loss/train", "loss/validation", "lr"), by a SummaryWriter that it makes when the
// training begins. What the folder has of epochs from the first one on, TensorBoard drops: of a run that was killed
// after its last checkpoint, say.
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
