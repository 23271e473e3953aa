// The parameters of the fused updates: optimizers' steps, moving averages of weights, clipped gradients.
//
// An update is a formula for single elements, applied to every element of a list of tensors; the formulas are in
// kernels/updates/. Values that change from step to step (learning rate, loss scale, number of steps) are read from the
// device's memory, so that a graph that holds a step (ddp/graph.h) uses their present values.
#pragma once

#include <cstdint>
#include <span>

#pragma GCC visibility push(default)
namespace lockstep {

// An update of a weight that several holders share, all in the memory of one CPU: one pass averages the gradients,
// updates the weight and copies it.
struct SharedUpdate {
  std::span<const float* const>
      grads;                           // one of each holder; the gradient is their sum in order, times 1 / grads.size()
  std::span<float* const> copies;      // the other holders' weights, which get the new values
  const float* clip_factor = nullptr;  // not null: the gradient is multiplied by it
};

// One tensor of an update, contiguous float32.
struct UpdateTensor {
  float* weight;                         // is changed
  const float* grad;                     // is read
  float* states[3];                      // are changed: as many as the formula has, in its order
  std::int64_t count;                    // elements
  const SharedUpdate* shared = nullptr;  // not null: its grads in place of `grad`, all of `count` elements. CPU only
  std::int64_t clock = 0;                // the index of its clock in GroupStep::clock
};

// State of dynamic loss scaling, kept on the device so that the host never waits for it. All members are floats: a
// checkpoint saves it as one tensor.
struct LossScaleState {
  float scale;          // factor for the next loss
  float found_bad;      // 1: a gradient is infinite or NaN; see LossScaleStep
  float good_steps;     // consecutive good steps since the scale last changed; below 0: consecutive skipped steps
  float skipped_steps;  // total
};

// A step under loss scaling, from one loss to the next. All optimizers that share the scale divide by `begin.scale`, in
// whatever order they step.
struct LossScaleStep {
  LossScaleState begin;  // state at the begin of the step; `found_bad` belongs to the optimizer that steps now
  float any_bad;         // 1: an optimizer that has already stepped had a bad gradient
};

// After a bad step scale *= backoff, but at least `minimum`; after growth_interval consecutive good ones scale *=
// growth, as long as it stays finite.
struct LossScaleRule {
  float growth, backoff;
  std::int64_t growth_interval;
  float minimum = 1;
};

// Counters of an update, on the device. Each update first advances them by its formula's rule; a step that loss scaling
// skips does not. Powers are computed by one multiplication per step, so they have the same bits on every device. All
// members are doubles: a checkpoint saves clocks as one tensor.
struct UpdateClock {
  double steps = 0;
  double powers[2] = {1, 1};
  double product = 1;

  bool operator==(const UpdateClock&) const = default;
};

// Arguments common to all optimizers' steps, for one group of parameters. The pointers are to device memory.
struct GroupStep {
  const float* lr;
  float weight_decay;
  // Not null: gradients are divided by `scale`; a step with `found_bad` changes nothing.
  const LossScaleState* loss_scale = nullptr;
  // An array of clocks, for the formulas that use them: a call advances the clock of a tensor before it updates the
  // tensor. Tensors with the same clock are adjacent, and the clock advances once for all of them.
  UpdateClock* clock = nullptr;
};

// The formulas and their sources are documented in lockstep/optim, in the header of each optimizer.
struct SgdParams {
  GroupStep group;
  float momentum = 0;  // 0: no state; else states: momentum
  bool nesterov = false;
};

struct AdamParams {  // states: exp_avg, exp_avg_sq; with amsgrad: max_exp_avg_sq
  GroupStep group;
  double beta1, beta2;
  float eps;
  bool decoupled;  // weight decay: AdamW's
  bool amsgrad = false;
};

struct NadamParams {  // states: exp_avg, exp_avg_sq
  GroupStep group;
  double beta1, beta2;
  double momentum_base;  // 0.96^momentum_decay
  float eps;
  bool decoupled;
};

struct RmspropParams {  // states: square_avg; momentum_buffer where momentum is not 0; grad_avg where centered
  GroupStep group;
  double alpha;
  float eps, momentum;
  bool centered;
};

struct AdagradParams {  // states: sum
  GroupStep group;
  float lr_decay, eps;
};

// weight += (grad - weight) * (1 - decay): `weight` is the moving average of the parameter, which is passed as `grad`.
// With `ramp` the decay is min(decay, (1 + n) / (10 + n)) after n updates.
struct AverageParams {
  UpdateClock* clock;
  double decay;
  bool ramp;
};

// Scales gradients, which are passed as `weight`; `grad` is not read.
struct ScaleParams {
  const float* factor;  // weight *= factor, a scalar on the device
};
struct ClampParams {
  float limit;                                 // weight = min(max(weight, -limit), limit)
  const LossScaleState* loss_scale = nullptr;  // not null: the limit is multiplied by `scale`
};

// The norm over all `grad`, divided by the loss scale if there is one, and the factor that reduces it to max_norm.
struct NormParams {
  float max_norm;
  const LossScaleState* loss_scale = nullptr;
};
struct NormResult {
  float norm;
  float factor;  // min(1, max_norm / (norm + 1e-6)); NaN if the norm is
};

}  // namespace lockstep
#pragma GCC visibility pop
