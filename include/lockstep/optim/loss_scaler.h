// Dynamic loss scaling, for float16: gradients of activations that would vanish below its smallest number are computed
// larger, and the optimizer divides again (Micikevicius et al., "Mixed precision training", ICLR 2018; the rule and
// numbers of PyTorch's GradScaler).
//
//   optim::LossScaler scaler;
//   optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .loss_scaler = &scaler});
//   scaler.scale(loss).backward();
//   sgd.step();  // skipped when a gradient is infinite or NaN; the scale follows
//
// The scale and the decision live on the device: the host waits for neither. Averaged gradients are the same on all
// ranks, so all ranks decide alike. Gradients that hooks and grad() see in between are scaled. bfloat16 has float32's
// range and needs none of this.
//
// Several optimizers may share a scaler. A step begins with the first scale() after an optimizer's step() and has the
// steps of all: each divides by the scale that the step began with, and skips for its own gradients alone; the rule is
// applied once, by the gradients of all, as if PyTorch's update() came last. The new scale counts from the next scale()
// on.
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
  float backoff = 0.5f;                 // after a step that was skipped
  std::int64_t growth_interval = 2000;  // at most 2^24
  float min_scale =
      1;  // no skipped step lowers the scale below it; at least 2^-126. A smaller initial is its own floor
  // So many skipped steps in a row are an Error, of the step() that skips the last one; 0: never. A GPU is looked at
  // once in so many steps, so the error comes at most as many steps later, and in a replayed graph not by itself: see
  // check().
  std::int64_t max_skips_in_a_row = 100;
};

// Its state is its optimizers', which keep it in checkpoints, as "loss_scaler.state". Only scale() may be called by
// several threads at once, for the losses of several devices.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {});  // InvalidArgument: a factor that makes no sense
  LossScaler(const LossScaler&) = delete;                      // a copy would not follow
  LossScaler& operator=(const LossScaler&) = delete;

  Tensor scale(const Tensor& loss);  // loss times the scale, differentiable

  // These wait for the device: for logs.
  float value() const;  // of the next loss
  std::int64_t skipped_steps() const;
  std::int64_t skips_in_a_row() const;
  // Throws the Error of max_skips_in_a_row, if it is due.
  void check() const;

  // For optimizers, and for functions that look at gradients before them. The state moves to `device`; float32, see
  // LossScaleState.
  const Tensor& state_on(Device& device);
  // Of the step that is under way, on any device: of several each has a copy.
  LossScaleState* data_on(Device& device);
  // Around the step of an optimizer. The first of a step says where the state lies.
  void begin_step(const void* optimizer, Device& device);
  void end_step(const void* optimizer, Device& device);
  const LossScalerOptions& options() const { return options_; }

 private:
  struct Copy {
    Device* device;
    Tensor step;           // a LossScaleStep
    std::uint64_t number;  // of the step that it is a copy of
  };
  bool is_new() const;
  void begin();
  void move_to(Device& device);
  Copy& copy_on(Device& device);

  const LossScalerOptions options_;
  const LossScaleRule rule_;
  Tensor state_;  // as it is after the optimizers' steps so far; what a checkpoint keeps
  std::mutex mutex_;
  std::vector<Copy> copies_;              // of the step; the first is beside the state
  std::vector<const void*> has_stepped_;  // optimizers, in this step
  std::uint64_t number_ = 0;              // of the step
  std::uint64_t seen_ = 0;                // state_'s version: another one was loaded
  bool is_claimed_ = false;               // by an optimizer; before, the state goes where the loss is
  std::int64_t unchecked_ = 0;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
