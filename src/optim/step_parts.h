// An optimizer's steps made by somebody else: in parts, while backward runs, or over slices of the parameters.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

// While an optimizer has one, its step() is this. It outlives neither the optimizer nor its own StepParts.
class StepOwner {
 public:
  virtual ~StepOwner() = default;
  virtual const char* name() const = 0;
  virtual void step() = 0;
};

// step() in its parts: begin(), find_bad_gradients(), update() as often as there are sets of parameters, end().
class StepParts {
 public:
  explicit StepParts(Optimizer& optimizer) : optimizer_(optimizer) {}
  ~StepParts() {
    if (!owns_) return;
    optimizer_.owner_ = nullptr;
    optimizer_.ranks_ = {};
  }
  StepParts(const StepParts&) = delete;
  StepParts& operator=(const StepParts&) = delete;

  StepOwner* owner() const { return optimizer_.owner_; }
  void set_owner(StepOwner& owner) {
    optimizer_.owner_ = &owner;
    owns_ = true;
  }
  bool can_share() const { return optimizer_.shares_updates_; }
  bool is_elementwise() const { return optimizer_.elementwise_; }
  bool scales_loss() const { return optimizer_.loss_scaler_ != nullptr; }
  LossScaler* loss_scaler() const { return optimizer_.loss_scaler_; }

  // This rank updates no more than these parts of the parameters, in their order, and keeps the state of no more. One
  // rank alone goes on with all of it.
  using Slice = Optimizer::Slice;
  void keep_slices(std::vector<Slice> slices, int ranks) { optimizer_.keep_slices(std::move(slices), ranks); }

  // Of the slices' elements, by index into parameters(), and for as long as this lives: updates average the ranks'
  // gradients themselves, and write the weights of all. Empty: no longer.
  void share(std::span<const UpdateRanks> ranks) { optimizer_.ranks_ = ranks; }

  void begin() { optimizer_.begin_step(); }
  LossScaleState* find_bad_gradients() { return optimizer_.find_bad_gradients(); }
  // By index into parameters(); those without a gradient stay as they are. On all devices the bits of one update of
  // all.
  void update(std::span<const std::size_t> parameters) { optimizer_.update_some(parameters); }
  void end() { optimizer_.end_step(); }

 private:
  Optimizer& optimizer_;
  bool owns_ = false;
};

}  // namespace lockstep::optim
