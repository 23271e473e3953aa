#include "lockstep/train/callback.h"

#include <cmath>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

namespace {

bool is_more_better(const std::string& name, Mode mode) {
  if (mode != Mode::kAuto) return mode == Mode::kMore;
  const std::string value = name.rfind("val_", 0) == 0 ? name.substr(4) : name;
  if (value.rfind("top", 0) == 0) return true;
  for (const char* const word : {"acc", "auc", "precision", "recall", "f1"})
    if (value.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace

// -- Monitor

Monitor::Monitor(std::string name, Mode mode, double min_delta)
    : name_(std::move(name)),
      more_(is_more_better(name_, mode)),
      min_delta_(std::fabs(min_delta)),
      best_(more_ ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity()) {}

bool Monitor::improves(const Logs& logs, const char* asks) {
  const double value = value_of(logs, name_, asks);
  const bool better = more_ ? value > best_ + min_delta_ : value < best_ - min_delta_;  // false for NaN
  if (better) best_ = value;
  return better;
}

// -- ModelCheckpoint

ModelCheckpoint::ModelCheckpoint(std::string folder, const CheckpointOptions& options)
    : folder_(std::move(folder)), options_(options), monitor_(options.monitor, options.mode) {
  if (options.every_epochs < 1 || options.keep < 1)
    throw InvalidArgument("ModelCheckpoint: every_epochs {} and keep {} must be positive", options.every_epochs, options.keep);
}

void ModelCheckpoint::on_train_begin(Trainer& trainer) { prepare_checkpoint_folder(folder_, trainer.group()); }

void ModelCheckpoint::on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) {
  if ((epoch + 1) % options_.every_epochs != 0) return;
  if (options_.best_only && !monitor_.improves(logs, "ModelCheckpoint")) return;
  trainer.save(folder_, options_.keep);
}

// -- EarlyStopping

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : options_(options), monitor_(options.monitor, options.mode, options.min_delta) {
  if (options.patience < 0) throw InvalidArgument("EarlyStopping: patience {} is negative", options.patience);
}

void EarlyStopping::on_train_begin(Trainer&) {
  monitor_ = Monitor(options_.monitor, options_.mode, options_.min_delta);
  waited_ = 0;
  best_epoch_ = -1;
  best_.clear();
}

void EarlyStopping::on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs& logs) {
  if (monitor_.improves(logs, "EarlyStopping")) {
    waited_ = 0;
    best_epoch_ = epoch;
    if (!options_.restore_best_weights) return;
    best_.clear();
    for (const NamedTensor& entry : trainer.model().state_dict()) best_.push_back({entry.name, entry.tensor.clone()});
  } else if (++waited_ >= options_.patience) {
    trainer.stop();
  }
}

void EarlyStopping::on_train_end(Trainer& trainer) {
  if (best_.empty()) return;
  trainer.model().load_state_dict(best_);
  trainer.weights_changed();
  best_.clear();
}

// -- learning rates

void LearningRate::on_step_begin(Trainer& trainer, std::int64_t step) { trainer.set_lr(rate_.at(step)); }

ReduceOnPlateau::ReduceOnPlateau(const ReduceOnPlateauOptions& options)
    : options_(options), monitor_(options.monitor, options.mode, options.min_delta) {
  if (!(options.factor > 0 && options.factor < 1) || options.patience < 0 || !optim::is_rate(options.min_lr))
    throw InvalidArgument("ReduceOnPlateau: factor {} must lie between 0 and 1, patience {} and min_lr {} must not be negative",
                          options.factor, options.patience, options.min_lr);
}

void ReduceOnPlateau::on_train_begin(Trainer&) {
  monitor_ = Monitor(options_.monitor, options_.mode, options_.min_delta);
  waited_ = 0;
}

void ReduceOnPlateau::on_epoch_end(Trainer& trainer, std::int64_t, const Logs& logs) {
  if (monitor_.improves(logs, "ReduceOnPlateau")) {
    waited_ = 0;
  } else if (++waited_ >= options_.patience) {
    trainer.set_lr(std::max(options_.min_lr, trainer.strategy().optimizer().lr() * options_.factor));
    waited_ = 0;
  }
}

// -- TensorBoard

void TensorBoard::on_train_begin(Trainer& trainer) { writer_ = SummaryWriter(log_dir_, {.group = trainer.group()}); }

void TensorBoard::on_epoch_end(Trainer&, std::int64_t epoch, const Logs& logs) {
  for (const auto& [name, value] : logs) {
    const bool of_validation = name.rfind("val_", 0) == 0;
    writer_.add_scalar(name == "lr" ? name : of_validation ? name.substr(4) + "/validation" : name + "/train", value, epoch);
  }
  writer_.flush();
}

void TensorBoard::on_train_end(Trainer&) { writer_.close(); }

}  // namespace lockstep::train
