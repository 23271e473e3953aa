// Callbacks of a Trainer run between its steps and epochs. callback.h has the common ones; derive from Callback and
// override what you need for your own.
//
// They are called on every rank, in the order of FitOptions::callbacks. An exception ends fit() on all ranks, with its
// text. Epochs are numbered from 0, here and in the history, the log and TensorBoard.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/history.h"

#pragma GCC visibility push(default)
namespace lockstep::train {

class Trainer;

// A callback's state in a checkpoint.
struct CallbackState {
  std::map<std::string, double> numbers = {};    // may be NaN or infinite
  std::string text = {};                         // UTF-8
  std::vector<NamedTensor> tensors = {};         // on any device; restored ones are on the CPU
  double number(const std::string& name) const;  // FileError if there is none of that name
};

class Callback {
 public:
  virtual ~Callback() = default;
  // Called before the training. Throw if the callback cannot work with the trainer; then all ranks throw, and their
  // group stays usable. Make no collective calls.
  virtual void check(const Trainer&) {}
  virtual void on_train_begin(Trainer&) {}
  // From FitOptions::initial_epoch on; also for an epoch that a loaded checkpoint continues in its middle.
  virtual void on_epoch_begin(Trainer&, std::int64_t /*epoch*/) {}
  virtual void on_step_begin(Trainer&, std::int64_t /*step*/) {}  // number of completed steps, over all fits
  // `step` includes this step; "loss" is of this rank's samples.
  virtual void on_step_end(Trainer&, std::int64_t /*step*/, const Logs& /*logs*/) {}
  // Called after the on_step_end() of all callbacks, so that Trainer::save() saves their states after this step.
  virtual void on_step_checkpoint(Trainer&, std::int64_t /*step*/) {}
  // "loss", metrics, "val_loss", "val_<metric>", "lr": over all ranks' samples, the same on each.
  virtual void on_epoch_end(Trainer&, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // Called after the on_epoch_end() of all callbacks, so that Trainer::save() saves their states after this epoch.
  virtual void on_checkpoint(Trainer&, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_end(Trainer&) {}  // not after an exception, and not after Trainer::preempt()

  // The name under which Trainer::save() keeps state(). It should identify what the state depends on
  // ("EarlyStopping(val_loss, less)"). "": no state.
  virtual std::string state_name() const { return ""; }
  virtual CallbackState state() const { return {}; }
  // Called after on_train_begin() of the first fit() that continues from Trainer::load(), if the checkpoint has a state
  // of this name.
  virtual void restore(Trainer&, const CallbackState&) {}
};

}  // namespace lockstep::train
#pragma GCC visibility pop
