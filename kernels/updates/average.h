// The formula of lockstep/optim/ema.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

struct Average {
  static constexpr int kStates = 0;

  float rate;

  LOCKSTEP_FORMULA explicit Average(const AverageParams& params) {
    const double before = params.clock->steps - 1, ramp = (1 + before) / (10 + before);
    rate = static_cast<float>(1 - (params.ramp && ramp < params.decay ? ramp : params.decay));
  }

  LOCKSTEP_FORMULA static void advance(UpdateClock& clock, const AverageParams&) { clock.steps += 1; }

  LOCKSTEP_FORMULA void operator()(float& average, float value) const { average = average + (value - average) * rate; }
};

template <typename Call> void with_formula(const AverageParams&, Call&& call) { call(Use<Average>{}); }

}  // namespace lockstep::updates
