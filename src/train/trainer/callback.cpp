#include "lockstep/train/callback.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/trainer.h"
#include "src/train/files/bare_name.h"

namespace lockstep::train {

namespace {

// Omits the best value if there is none yet.
CallbackState state_of(const Monitor& monitor) {
  CallbackState state;
  if (monitor.best()) state.numbers["best"] = *monitor.best();
  return state;
}

void restore_monitor(Monitor& monitor, const CallbackState& state) {
  monitor.restart();
  if (state.numbers.count("best") != 0) monitor.resume(state.number("best"));
}

}  // namespace

double CallbackState::number(const std::string& name) const {
  const auto found = numbers.find(name);
  if (found == numbers.end()) throw FileError("the checkpoint's state of a callback has no number '{}'", name);
  return found->second;
}

// -- ModelCheckpoint

ModelCheckpoint::ModelCheckpoint(std::string folder, const CheckpointOptions& options)
    : folder_(std::move(folder)), options_(options), monitor_(options.monitor, options.mode) {
  if (options.every_epochs < 1 || options.keep < 1)
    throw InvalidArgument("ModelCheckpoint: every_epochs {} and keep {} must be positive", options.every_epochs,
                          options.keep);
  if (options.every_steps < 0 || (options.every_steps > 0 && options.best_only))
    throw InvalidArgument(
        "ModelCheckpoint: every_steps {}{}: it must not be negative, and 0 with best_only, which compares epochs",
        options.every_steps, options.best_only ? " with best_only" : "");
}

void ModelCheckpoint::check(const Trainer& trainer) {
  if (options_.best_only) monitor_.follow(trainer, "ModelCheckpoint");
}

void ModelCheckpoint::on_train_begin(Trainer& trainer) { prepare_checkpoint_folder(folder_, trainer.group()); }

void ModelCheckpoint::on_step_checkpoint(Trainer& trainer, std::int64_t step) {
  if (options_.every_steps == 0 || step % options_.every_steps != 0) return;
  const bool epoch_is_saved = (trainer.epoch() + 1) % options_.every_epochs == 0;
  if (!trainer.is_last_step() || !epoch_is_saved) trainer.save(folder_, options_.keep, options_.save);
}

void ModelCheckpoint::on_checkpoint(Trainer& trainer, std::int64_t epoch, const Logs& logs) {
  if ((epoch + 1) % options_.every_epochs != 0) return;
  if (options_.best_only && !monitor_.improves(logs, "ModelCheckpoint")) return;
  trainer.save(folder_, options_.keep, options_.save);
}

std::string ModelCheckpoint::state_name() const {
  return options_.best_only ? fmt::format("ModelCheckpoint({})", monitor_.text()) : "";
}
CallbackState ModelCheckpoint::state() const { return state_of(monitor_); }
void ModelCheckpoint::restore(Trainer&, const CallbackState& state) { restore_monitor(monitor_, state); }

// -- Preemption

Preemption::Preemption(std::string folder, const PreemptionOptions& options)
    : folder_(std::move(folder)), options_(options) {
  if (options.every_steps < 1 || options.keep < 1)
    throw InvalidArgument("Preemption: every_steps {} and keep {} must be positive", options.every_steps, options.keep);
}

namespace {

// The workers of an asynchronous parameter_server get an answer each; here they are all after the same step.
bool should_stop_together(Trainer& trainer) {
  std::int32_t stops = trainer.strategy().should_stop() ? 1 : 0;
  if (trainer.strategy().as<ParameterWorker>() != nullptr)
    trainer.group()->all_reduce(std::span(&stops, 1), ReduceOp::kMax, {.purpose = {"stop request"}});
  return stops != 0;
}

}  // namespace

// From here on signals are remembered.
void Preemption::on_train_begin(Trainer& trainer) {
  prepare_checkpoint_folder(folder_, trainer.group());
  static_cast<void>(should_stop_together(trainer));
}

void Preemption::on_step_checkpoint(Trainer& trainer, std::int64_t step) {
  if (step % options_.every_steps != 0 || !should_stop_together(trainer)) return;
  SaveOptions saving = options_.save;
  saving.background = false;
  const std::string saved = trainer.save(folder_, options_.keep, saving);
  if (trainer.is_first_rank() && !saved.empty())
    log::info("Trainer::fit: a signal ends this training after step {}, which {} has", step, saved);
  if (trainer.is_first_rank() && saved.empty())
    log::error("Trainer::fit: a signal ends this training after step {}, which is not saved", step);
  trainer.preempt();
}

// -- EarlyStopping

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : options_(options), monitor_(options.monitor, options.mode, options.min_delta) {
  if (options.patience < 0) throw InvalidArgument("EarlyStopping: patience {} must not be negative", options.patience);
}

void EarlyStopping::check(const Trainer& trainer) { monitor_.follow(trainer, "EarlyStopping"); }

void EarlyStopping::on_train_begin(Trainer&) {
  monitor_.restart();
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

std::string EarlyStopping::state_name() const { return fmt::format("EarlyStopping({})", monitor_.text()); }

CallbackState EarlyStopping::state() const {
  CallbackState state = state_of(monitor_);
  state.numbers["waited"] = static_cast<double>(waited_);
  state.numbers["best_epoch"] = static_cast<double>(best_epoch_);
  state.tensors = best_;
  return state;
}

void EarlyStopping::restore(Trainer& trainer, const CallbackState& state) {
  const auto best_epoch = static_cast<std::int64_t>(state.number("best_epoch"));
  if (options_.restore_best_weights && best_epoch >= 0 && state.tensors.empty()) {
    if (trainer.is_first_rank())
      log::warn(
          "EarlyStopping: the checkpoint has no weights of its best epoch {}: it was saved without "
          "restore_best_weights, or after the end of its training; only epochs from {} on are compared",
          best_epoch, trainer.epoch());
    return;
  }
  restore_monitor(monitor_, state);
  best_epoch_ = best_epoch;
  waited_ = static_cast<std::int64_t>(state.number("waited"));
  if (options_.restore_best_weights) best_ = state.tensors;
  if (waited_ > 0 && waited_ >= options_.patience) trainer.stop();  // the training had ended
}

// -- learning rates

void LearningRate::on_step_begin(Trainer& trainer, std::int64_t step) { trainer.set_lr(rate_.at(step)); }

ReduceOnPlateau::ReduceOnPlateau(const ReduceOnPlateauOptions& options)
    : options_(options), monitor_(options.monitor, options.mode, options.min_delta) {
  if (!(options.factor > 0 && options.factor < 1) || options.patience < 0 || !optim::is_rate(options.min_lr))
    throw InvalidArgument(
        "ReduceOnPlateau: factor {} must be between 0 and 1, and patience {} and min_lr {} must not be negative",
        options.factor, options.patience, options.min_lr);
}

void ReduceOnPlateau::check(const Trainer& trainer) { monitor_.follow(trainer, "ReduceOnPlateau"); }

void ReduceOnPlateau::on_train_begin(Trainer&) {
  monitor_.restart();
  waited_ = 0;
}

void ReduceOnPlateau::on_epoch_end(Trainer& trainer, std::int64_t, const Logs& logs) {
  if (monitor_.improves(logs, "ReduceOnPlateau")) {
    waited_ = 0;
  } else if (++waited_ >= options_.patience) {
    const float rate = trainer.strategy().lr();
    if (rate > options_.min_lr) trainer.set_lr(std::max(options_.min_lr, rate * options_.factor));
    waited_ = 0;
  }
}

std::string ReduceOnPlateau::state_name() const { return fmt::format("ReduceOnPlateau({})", monitor_.text()); }

// The checkpoint saves the learning rate with the optimizer.
CallbackState ReduceOnPlateau::state() const {
  CallbackState state = state_of(monitor_);
  state.numbers["waited"] = static_cast<double>(waited_);
  return state;
}

void ReduceOnPlateau::restore(Trainer&, const CallbackState& state) {
  restore_monitor(monitor_, state);
  waited_ = static_cast<std::int64_t>(state.number("waited"));
}

// -- TensorBoard

void TensorBoard::on_train_begin(Trainer& trainer) {
  writer_ = SummaryWriter(log_dir_, {.group = trainer.group(), .purge_step = trainer.epoch()});
}

void TensorBoard::on_epoch_end(Trainer&, std::int64_t epoch, const Logs& logs) {
  for (const auto& [name, value] : logs) {
    writer_.add_scalar(name == "lr" ? name : bare_name(name) + (is_of_validation(name) ? "/validation" : "/train"),
                       value, epoch);
  }
  writer_.flush();
}

void TensorBoard::on_train_end(Trainer&) { writer_.close(); }

}  // namespace lockstep::train
