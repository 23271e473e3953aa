// The formulas of lockstep/optim/loss_scaler.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

// A scale below the minimum, which older checkpoints may contain, is raised to it.
LOCKSTEP_FORMULA void begin(const LossScaleRule& rule, const LossScaleState& state, LossScaleStep& step) {
  step.begin = state;
  if (!(step.begin.scale >= rule.minimum)) step.begin.scale = rule.minimum;
  step.begin.found_bad = 0;
  step.any_bad = 0;
}

// Runs after an optimizer's step. Several optimizers in a row form one step of the rule: each computes the state again
// from the one at the begin of the step.
LOCKSTEP_FORMULA void follow(const LossScaleRule& rule, LossScaleStep& step, LossScaleState& state) {
  if (step.begin.found_bad != 0) step.any_bad = 1;
  step.begin.found_bad = 0;
  state = step.begin;
  if (step.any_bad != 0) {
    state.scale *= rule.backoff;
    if (state.scale < rule.minimum) state.scale = rule.minimum;
    state.good_steps = (state.good_steps < 0 ? state.good_steps : 0) - 1;
    state.skipped_steps += 1;
    return;
  }
  state.good_steps = (state.good_steps > 0 ? state.good_steps : 0) + 1;
  if (state.good_steps < static_cast<float>(rule.growth_interval)) return;
  if (isfinite(state.scale * rule.growth)) state.scale *= rule.growth;
  state.good_steps = 0;
}

}  // namespace lockstep::updates
