// The formula of lockstep/optim/nadam.h. The clock's powers are momentum_base^t and beta2^t, its product is that of
// mu_1 .. mu_t.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

template <bool kDecoupled> struct Nadam {
  static constexpr int kStates = 2;

  Group group;
  float shrink, one_less_beta1, beta2, one_less_beta2, of_grad, of_average, unbias, eps;

  LOCKSTEP_FORMULA explicit Nadam(const NadamParams& params)
      : group(params.group),
        shrink(1 - group.lr * group.decay),
        one_less_beta1(static_cast<float>(1 - params.beta1)),
        beta2(static_cast<float>(params.beta2)),
        one_less_beta2(static_cast<float>(1 - params.beta2)),
        unbias(1 / sqrtf(static_cast<float>(1 - params.group.clock->powers[1]))),
        eps(params.eps) {
    const UpdateClock& clock = *params.group.clock;
    const double now = mu(params, clock.powers[0]), next = mu(params, clock.powers[0] * params.momentum_base);
    of_grad = group.lr * static_cast<float>(1 - now) / static_cast<float>(1 - clock.product);
    of_average = group.lr * static_cast<float>(next) / static_cast<float>(1 - clock.product * next);
  }

  LOCKSTEP_FORMULA static double mu(const NadamParams& params, double power) {
    return params.beta1 * (1 - 0.5 * power);
  }
  LOCKSTEP_FORMULA static void advance(UpdateClock& clock, const NadamParams& params) {
    clock.steps += 1;
    clock.powers[0] *= params.momentum_base;
    clock.powers[1] *= params.beta2;
    clock.product *= mu(params, clock.powers[0]);
  }

  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& exp_avg, float& exp_avg_sq) const {
    const float g = kDecoupled ? grad * group.unscale : grad * group.unscale + group.decay * weight;
    const float w = kDecoupled ? weight * shrink : weight;
    exp_avg = exp_avg + (g - exp_avg) * one_less_beta1;
    exp_avg_sq = exp_avg_sq * beta2 + (g * one_less_beta2) * g;
    weight = w - (of_grad * g + of_average * exp_avg) / (sqrtf(exp_avg_sq) * unbias + eps);
  }
};

template <typename Call> void with_formula(const NadamParams& params, Call&& call) {
  params.decoupled ? call(Use<Nadam<true>>{}) : call(Use<Nadam<false>>{});
}

}  // namespace lockstep::updates
