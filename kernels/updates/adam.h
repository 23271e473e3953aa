// The formula of lockstep/optim/adam.h. The clock's powers are beta1^t and beta2^t.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

template <bool kDecoupled, bool kAmsgrad> struct Adam {
  static constexpr int kStates = kAmsgrad ? 3 : 2;

  Group group;
  float shrink, one_less_beta1, beta2, one_less_beta2, step_size, unbias, eps;

  LOCKSTEP_FORMULA explicit Adam(const AdamParams& params)
      : group(params.group),
        shrink(1 - group.lr * group.decay),
        one_less_beta1(static_cast<float>(1 - params.beta1)),
        beta2(static_cast<float>(params.beta2)),
        one_less_beta2(static_cast<float>(1 - params.beta2)),
        step_size(group.lr / static_cast<float>(1 - params.group.clock->powers[0])),
        unbias(1 / sqrtf(static_cast<float>(1 - params.group.clock->powers[1]))),
        eps(params.eps) {}

  LOCKSTEP_FORMULA static void advance(UpdateClock& clock, const AdamParams& params) {
    clock.steps += 1;
    clock.powers[0] *= params.beta1;
    clock.powers[1] *= params.beta2;
  }

  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& exp_avg, float& exp_avg_sq) const {
    float ignored = 0;
    (*this)(weight, grad, exp_avg, exp_avg_sq, ignored);
  }
  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& exp_avg, float& exp_avg_sq,
                                   float& max_exp_avg_sq) const {
    const float g = kDecoupled ? grad * group.unscale : grad * group.unscale + group.decay * weight;
    const float w = kDecoupled ? weight * shrink : weight;
    exp_avg = exp_avg + (g - exp_avg) * one_less_beta1;
    exp_avg_sq = exp_avg_sq * beta2 + (g * one_less_beta2) * g;
    // As PyTorch's maximum, a NaN is kept.
    if constexpr (kAmsgrad) max_exp_avg_sq = exp_avg_sq <= max_exp_avg_sq ? max_exp_avg_sq : exp_avg_sq;
    weight = w - step_size * (exp_avg / (sqrtf(kAmsgrad ? max_exp_avg_sq : exp_avg_sq) * unbias + eps));
  }
};

template <typename Call> void with_formula(const AdamParams& params, Call&& call) {
  if (params.amsgrad)
    params.decoupled ? call(Use<Adam<true, true>>{}) : call(Use<Adam<false, true>>{});
  else
    params.decoupled ? call(Use<Adam<true, false>>{}) : call(Use<Adam<false, false>>{});
}

}  // namespace lockstep::updates
