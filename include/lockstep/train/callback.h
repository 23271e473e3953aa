// Callbacks of a Trainer: what happens between its steps and epochs. Those that most trainings want stand here; one of your own overrides
// what it needs.
//
// They are called on every rank, in the order of FitOptions::callbacks. What one throws ends fit() on all ranks, with its text.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/schedule.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/history.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/summary_writer.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

class Trainer;

class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_train_begin(Trainer&) {}
  virtual void on_epoch_begin(Trainer&, std::int64_t /*epoch*/) {}                   // from FitOptions::initial_epoch on
  virtual void on_step_begin(Trainer&, std::int64_t /*step*/) {}                     // steps done before, over all fits
  virtual void on_step_end(Trainer&, std::int64_t /*step*/, const Logs& /*logs*/) {}  // now with this one; "loss" of this rank's samples
  // "loss", metrics, "val_loss", "val_<metric>", "lr": of all ranks' samples, the same on each.
  virtual void on_epoch_end(Trainer&, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_end(Trainer&) {}  // not after an exception
};

// Which of two values is the better one.
enum class Mode {
  kAuto,  // by the name: more for accuracy and top-k ("accuracy", "acc", "top5", "auc", ...), less for the rest
  kLess,
  kMore
};

// Follows one value of the logs.
class Monitor {
 public:
  Monitor(std::string name, Mode mode, double min_delta = 0);
  // Is this epoch's the best so far, by more than min_delta? NaN never is. InvalidArgument, which lists the names, where there is none
  // of that name.
  bool improves(const Logs& logs, const char* asks);
  const std::string& name() const { return name_; }
  double best() const { return best_; }

 private:
  std::string name_;
  bool more_;
  double min_delta_, best_;
};

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
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;

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
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;
  void on_train_end(Trainer& trainer) override;
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

// The rate times `factor` after `patience` epochs without a better value; each fit() counts anew.
class ReduceOnPlateau : public Callback {
 public:
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});  // InvalidArgument: a factor outside of (0, 1)
  void on_train_begin(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) override;

 private:
  ReduceOnPlateauOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0;
};

// Each epoch's logs as scalars ("loss/train", "loss/validation", "lr"), by a SummaryWriter that it makes when the training begins.
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
