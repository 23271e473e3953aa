// Access to the parts of an optimizer's step, to run them during backward or over slices of the parameters.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

// If an optimizer has an owner, the owner's step() replaces its own. The owner must not outlive the optimizer or its
// StepParts.
class StepOwner {
 public:
  virtual ~StepOwner() = default;
  virtual const char* name() const = 0;
  virtual void step() = 0;
};

// The parts of step(): begin(), find_bad_gradients(), update() for each set of parameters, end().
class StepParts {
 public:
  explicit StepParts(Optimizer& optimizer) : optimizer_(optimizer) {}
  ~StepParts() {
    if (!owns_) return;
    optimizer_.owner_ = nullptr;
    optimizer_.shared_updates_ = {};
  }
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  StepOwner* owner() const { return optimizer_.owner_; }
  void set_owner(StepOwner& owner) {
    optimizer_.owner_ = &owner;
    optimizer_.owner_name_ = owner.name();
    owns_ = true;
  }
  bool can_share() const { return optimizer_.shares_updates_; }
  bool is_elementwise() const { return optimizer_.elementwise_; }
  bool scales_loss() const { return optimizer_.loss_scaler_ != nullptr; }
  LossScaler* loss_scaler() const { return optimizer_.loss_scaler_; }

  // Restricts the optimizer to these slices of the parameters, in order: it updates them and keeps the state only for
  // them. `holders` optimizers have slices; with one holder, the state stays complete.
  using Slice = Optimizer::Slice;
  void keep_slices(std::vector<Slice> slices, int holders) { optimizer_.keep_slices(std::move(slices), holders); }

  // `updates` is indexed like parameters() and must live as long as this object. Updates then average the holders'
  // gradients for the slices' elements and write the weights of all holders. Empty: stop sharing.
  void share(std::span<const SharedUpdate> updates) { optimizer_.shared_updates_ = updates; }

  void begin() { optimizer_.begin_step(); }
  LossScaleState* find_bad_gradients() { return optimizer_.find_bad_gradients(); }
  // `parameters` are indices into parameters(); those without a gradient are not changed. Several calls give the same
  // bits on all devices as one for all parameters.
  void update(std::span<const std::size_t> parameters) { optimizer_.update_some(parameters); }
  void end() { optimizer_.end_step(); }

 private:
  Optimizer& optimizer_;
  bool owns_ = false;
};

}  // namespace lockstep::optim
