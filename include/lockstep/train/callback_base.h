// Callbacks of a Trainer: what happens between its steps and epochs. callback.h has those that most trainings want; one
// of your own overrides what it needs.
//
// They are called on every rank, in the order of FitOptions::callbacks. What one throws ends fit() on all ranks, with
// its text. Epochs are numbered from 0, here and in the history, the log and TensorBoard.
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

// State that a checkpoint keeps of a callback.
struct CallbackState {
  std::map<std::string, double> numbers = {};    // NaN and infinities, too
  std::string text = {};                         // UTF-8
  std::vector<NamedTensor> tensors = {};         // on any device; those that come back are on the CPU
  double number(const std::string& name) const;  // FileError where there is none of that name
};

class Callback {
 public:
  virtual ~Callback() = default;
  // Before the training: throws where the trainer cannot do for this callback. Then all ranks throw, and their group
  // goes on. No collective calls.
  virtual void check(const Trainer&) {}
  virtual void on_train_begin(Trainer&) {}
  virtual void on_epoch_begin(Trainer&, std::int64_t /*epoch*/) {}  // from FitOptions::initial_epoch on
  virtual void on_step_begin(Trainer&, std::int64_t /*step*/) {}    // steps done before, over all fits
  // Now with this step; "loss" of this rank's samples.
  virtual void on_step_end(Trainer&, std::int64_t /*step*/, const Logs& /*logs*/) {}
  // "loss", metrics, "val_loss", "val_<metric>", "lr": of all ranks' samples, the same on each.
  virtual void on_epoch_end(Trainer&, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  // After the on_epoch_end() of all callbacks: here Trainer::save() has the state of all of them behind this epoch.
  virtual void on_checkpoint(Trainer&, std::int64_t /*epoch*/, const Logs& /*logs*/) {}
  virtual void on_train_end(Trainer&) {}  // not after an exception

  // Trainer::save() keeps state() under this name, which says what the state is of ("EarlyStopping(val_loss, less)");
  // "": there is none.
  virtual std::string state_name() const { return ""; }
  virtual CallbackState state() const { return {}; }
  // After on_train_begin() of the first fit() that goes on where Trainer::load() stood, when the checkpoint has a state
  // of this name.
  virtual void restore(Trainer&, const CallbackState&) {}
};

}  // namespace lockstep::train
#pragma GCC visibility pop
