// What formulas of updates have in common. A formula is a class:
//
//   struct Warp {                                                    kernels/updates/warp.h
//     static constexpr int kStates = 2;
//     explicit Warp(const WarpParams& params);                       once a call: reads the device's scalars
//     void operator()(float& weight, float grad, float& first, float& second) const;     once an element
//     static void advance(UpdateClock& clock, const WarpParams& params);                 if it counts: once a step, before the rest
//   };
//   template <typename Call>
//   void with_formula(const WarpParams& params, Call&& call) { call(Use<Warp>{}); }      or the one of several that params ask for
//
// Written once, it is compiled as a loop for each instruction set of the CPU (kernels/cpu/fast_updates.cpp) and as a CUDA kernel
// (kernels/cuda/updates.cu). Products and sums are rounded one by one, and division and square root exactly: the same bits everywhere. So
// no function of <math.h> but sqrtf() may be used.
#pragma once

#include <math.h>  // NOLINT: sqrtf() without std::, which CUDA has as well

#include "lockstep/core/update_params.h"

// Before a function; a compiler of another kind defines it otherwise, before it includes this.
#ifndef LOCKSTEP_FORMULA
#define LOCKSTEP_FORMULA [[gnu::always_inline]] inline
#endif

namespace lockstep::updates {

// Names a formula as an argument.
template <typename Formula>
struct Use {
  using type = Formula;
};

// Does loss scaling skip this step?
template <typename Params>
LOCKSTEP_FORMULA bool skips(const Params& params) {
  if constexpr (requires { params.group; })
    return params.group.loss_scale != nullptr && params.group.loss_scale->found_bad != 0;
  else
    return false;
}

template <typename Formula, typename Params>
concept Counts = requires(UpdateClock& clock, const Params& params) {
  Formula::advance(clock, params);
};

// Does the clock advance in this call? A step of several calls counts once.
template <typename Params>
LOCKSTEP_FORMULA bool begins_step(const Params& params) {
  if constexpr (requires { params.group; })
    return !params.group.continues_step;
  else
    return true;
}

template <typename Params>
LOCKSTEP_FORMULA UpdateClock& clock_of(const Params& params) {
  if constexpr (requires { params.group; })
    return *params.group.clock;
  else
    return *params.clock;
}

// What every optimizer's formula reads first.
struct Group {
  float lr, unscale, decay;
  LOCKSTEP_FORMULA explicit Group(const GroupStep& group)
      : lr(*group.lr), unscale(group.loss_scale == nullptr ? 1.0F : 1 / group.loss_scale->scale), decay(group.weight_decay) {}
};

}  // namespace lockstep::updates
