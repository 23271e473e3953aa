// lockstep/optim/loss_scaler.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

// After a step.
LOCKSTEP_FORMULA void follow(const LossScaleRule& rule, LossScaleState& state) {
  if (state.found_bad != 0) {
    state.scale *= rule.backoff;
    state.good_steps = 0;
    state.skipped_steps += 1;
    state.found_bad = 0;
    return;
  }
  state.good_steps += 1;
  if (state.good_steps < static_cast<float>(rule.growth_interval)) return;
  if (isfinite(state.scale * rule.growth)) state.scale *= rule.growth;
  state.good_steps = 0;
}

}  // namespace lockstep::updates
