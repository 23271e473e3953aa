// The formulas of lockstep/optim/clip.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

struct Scale {
  static constexpr int kStates = 0;

  float factor;

  LOCKSTEP_FORMULA explicit Scale(const ScaleParams& params) : factor(*params.factor) {}
  LOCKSTEP_FORMULA void operator()(float& value, float) const { value = value * factor; }
};

struct Clamp {
  static constexpr int kStates = 0;

  float limit;

  LOCKSTEP_FORMULA explicit Clamp(const ClampParams& params)
      : limit(params.loss_scale == nullptr ? params.limit : params.limit * params.loss_scale->scale) {}
  LOCKSTEP_FORMULA void operator()(float& value, float) const {  // NaN stays NaN
    value = value > limit ? limit : value < -limit ? -limit : value;
  }
};

// `squares`: the sum of all squares.
LOCKSTEP_FORMULA NormResult norm_of(double squares, const NormParams& params) {
  const auto whole = static_cast<float>(sqrt(squares));
  const float norm = params.loss_scale == nullptr ? whole : whole / params.loss_scale->scale;
  const float factor = params.max_norm / (norm + 1e-6F);
  return {norm, factor > 1 ? 1.0F : factor};
}

template <typename Call> void with_formula(const ScaleParams&, Call&& call) { call(Use<Scale>{}); }
template <typename Call> void with_formula(const ClampParams&, Call&& call) { call(Use<Clamp>{}); }

}  // namespace lockstep::updates
