// The formula of lockstep/optim/adagrad.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

struct Adagrad {
  static constexpr int kStates = 1;

  Group group;
  float rate, eps;

  LOCKSTEP_FORMULA explicit Adagrad(const AdagradParams& params)
      : group(params.group),
        rate(group.lr / (1 + static_cast<float>(params.group.clock->steps - 1) * params.lr_decay)),
        eps(params.eps) {}

  LOCKSTEP_FORMULA static void advance(UpdateClock& clock, const AdagradParams&) { clock.steps += 1; }

  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& sum) const {
    const float g = grad * group.unscale + group.decay * weight;
    sum = sum + g * g;
    weight -= rate * (g / (sqrtf(sum) + eps));
  }
};

template <typename Call> void with_formula(const AdagradParams&, Call&& call) { call(Use<Adagrad>{}); }

}  // namespace lockstep::updates
