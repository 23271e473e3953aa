// The formula of lockstep/optim/rmsprop.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

template <bool kMomentum, bool kCentered> struct Rmsprop {
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);

  Group group;
  float alpha, one_less_alpha, eps, momentum;

  LOCKSTEP_FORMULA explicit Rmsprop(const RmspropParams& params)
      : group(params.group),
        alpha(static_cast<float>(params.alpha)),
        one_less_alpha(static_cast<float>(1 - params.alpha)),
        eps(params.eps),
        momentum(params.momentum) {}

  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& square_avg) const {
    float none = 0;
    update(weight, grad, square_avg, none, none);
  }
  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& square_avg, float& second) const {
    float none = 0;
    if constexpr (kMomentum)
      update(weight, grad, square_avg, second, none);
    else
      update(weight, grad, square_avg, none, second);
  }
  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& square_avg, float& buffer, float& grad_avg) const {
    update(weight, grad, square_avg, buffer, grad_avg);
  }

 private:
  LOCKSTEP_FORMULA void update(float& weight, float grad, float& square_avg, float& buffer, float& grad_avg) const {
    const float g = grad * group.unscale + group.decay * weight;
    square_avg = square_avg * alpha + (g * one_less_alpha) * g;
    float variance = square_avg;
    if constexpr (kCentered) {
      grad_avg = grad_avg + (g - grad_avg) * one_less_alpha;
      variance = square_avg - grad_avg * grad_avg;
      variance = variance < 0 ? 0 : variance;  // only by rounding
    }
    float change = g / (sqrtf(variance) + eps);
    if constexpr (kMomentum) change = buffer = momentum * buffer + change;
    weight -= group.lr * change;
  }
};

template <typename Call> void with_formula(const RmspropParams& params, Call&& call) {
  if (params.momentum == 0)
    return params.centered ? call(Use<Rmsprop<false, true>>{}) : call(Use<Rmsprop<false, false>>{});
  params.centered ? call(Use<Rmsprop<true, true>>{}) : call(Use<Rmsprop<true, false>>{});
}

}  // namespace lockstep::updates
