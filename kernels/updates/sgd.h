// The formula of lockstep/optim/sgd.h.
#pragma once

#include "kernels/updates/formula.h"

namespace lockstep::updates {

template <bool kMomentum, bool kNesterov> struct Sgd {
  static constexpr int kStates = kMomentum ? 1 : 0;

  Group group;
  float momentum;

  LOCKSTEP_FORMULA explicit Sgd(const SgdParams& params) : group(params.group), momentum(params.momentum) {}

  LOCKSTEP_FORMULA void operator()(float& weight, float grad) const {
    weight -= group.lr * (grad * group.unscale + group.decay * weight);
  }
  LOCKSTEP_FORMULA void operator()(float& weight, float grad, float& velocity) const {
    const float decayed = grad * group.unscale + group.decay * weight;
    velocity = momentum * velocity + decayed;
    weight -= group.lr * (kNesterov ? decayed + momentum * velocity : velocity);
  }
};

template <typename Call> void with_formula(const SgdParams& params, Call&& call) {
  if (params.momentum == 0) return call(Use<Sgd<false, false>>{});
  params.nesterov ? call(Use<Sgd<true, true>>{}) : call(Use<Sgd<true, false>>{});
}

}  // namespace lockstep::updates
