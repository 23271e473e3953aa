// Dynamic loss scaling for float16: the loss is multiplied by a scale so that small gradients do not underflow, and the
// optimizer divides by it (Micikevicius et al., "Mixed precision training", ICLR 2018; rule and constants of PyTorch's
// GradScaler).
//
//   optim::LossScaler scaler;
//   optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .loss_scaler = &scaler});
//   scaler.scale(loss).backward();
//   sgd.step();  // skipped when a gradient is infinite or NaN; the scale is adjusted
//
// The scale and the decision stay on the device; the host does not block for either. Averaged gradients are the same on
// all ranks, so all ranks decide alike. Gradients seen in between, by hooks and grad(), are scaled. bfloat16 has
// float32's range and does not need loss scaling.
//
// Several optimizers may share a scaler. A step begins with the first scale() after an optimizer's step() and includes
// one step() of each optimizer. Each divides by the scale at the beginning of the step and skips only if its own
// gradients are bad. The rule is applied once, to the gradients of all, as if PyTorch's update() came last. The new
// scale applies from the next scale() on.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "lockstep/core/update_params.h"
#include "lockstep/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct LossScalerOptions {
  float initial = 65536;
  float growth = 2;                     // after growth_interval good steps in a row
  float backoff = 0.5f;                 // after a skipped step
  std::int64_t growth_interval = 2000;  // at most 2^24
  float min_scale = 1;                  // backoff stops here; at least 2^-126; a smaller `initial` is its own minimum
  // The step() that skips the last of this many steps in a row throws Error; 0: never. On a GPU the count is read only
  // once in that many steps, so the error can come that many steps late, and a replayed graph does not throw at all:
  // see check().
  std::int64_t max_skips_in_a_row = 100;
};

// The optimizers keep its state in checkpoints as "loss_scaler.state". Only scale() may be called by several threads at
// the same time, for losses on several devices.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {});  // InvalidArgument: options out of range
  LossScaler(const LossScaler&) = delete;                      // a copy would not be updated
  LossScaler& operator=(const LossScaler&) = delete;

  Tensor scale(const Tensor& loss);  // loss times the scale, differentiable

  // These block until the device is done; use them for logging.
  float value() const;  // scale of the next loss
  std::int64_t skipped_steps() const;
  std::int64_t skips_in_a_row() const;
  // Throws the Error of max_skips_in_a_row if it is due.
  void check() const;

  // For optimizers, and for functions that read gradients before them. Moves the state to `device`. Its float32 layout
  // is LossScaleState.
  const Tensor& state_on(Device& device);
  // State of the step in progress on any device; each of several devices has a copy.
  LossScaleState* data_on(Device& device);
  // Called around an optimizer's step. The first one in a step decides on which device the state is.
  void begin_step(const void* optimizer, Device& device);
  void end_step(const void* optimizer, Device& device);
  const LossScalerOptions& options() const { return options_; }

 private:
  struct Copy {
    Device* device;
    Tensor step;           // a LossScaleStep
    std::uint64_t number;  // of the step that it belongs to
  };
  bool is_new() const;
  void begin();
  void move_to(Device& device);
  Copy& copy_on(Device& device);

  const LossScalerOptions options_;
  const LossScaleRule rule_;
  Tensor state_;  // after the optimizers' steps so far; saved in checkpoints
  std::mutex mutex_;
  std::vector<Copy> copies_;              // of the step; the first is on the state's device
  std::vector<const void*> has_stepped_;  // optimizers that have stepped in this step
  std::uint64_t number_ = 0;              // number of the step
  std::uint64_t seen_ = 0;                // last version of state_; a newer one was loaded
  bool is_claimed_ = false;               // by an optimizer; before that, the state moves to the loss's device
  std::int64_t unchecked_ = 0;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
