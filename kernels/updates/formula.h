// Common parts of the updates' formulas. A formula is a class:
//
//   struct Warp {                                                    kernels/updates/warp.h
//     static constexpr int kStates = 2;
//     explicit Warp(const WarpParams& params);                       once per call: reads the device's scalars
//     void operator()(float& weight, float grad, float& first, float& second) const;     once per element
//     static void advance(UpdateClock& clock, const WarpParams& params);                 optional: before each step
//   };
//   template <typename Call>
//   void with_formula(const WarpParams& params, Call&& call) { call(Use<Warp>{}); }      may choose by the params
//
// It is written once and compiled as a loop for each instruction set of the CPU (kernels/cpu/loops/fast_updates.cpp)
// and as a CUDA kernel (kernels/cuda/updates.cu). Products and sums are rounded one by one, and division and square
// root exactly, so the bits are the same everywhere. Therefore sqrtf() is the only function of <math.h> that may be
// used.
#pragma once

#include <math.h>  // NOLINT: sqrtf() without std::, which CUDA has as well

#include <optional>
#include <span>
#include <utility>

#include "kernels/always_inline.h"
#include "lockstep/core/update_params.h"

namespace lockstep::updates {

// Passes a formula's type as an argument.
template <typename Formula> struct Use { using type = Formula; };

// True if loss scaling skips this step.
template <typename Params> LOCKSTEP_FORMULA bool skips(const Params& params) {
  if constexpr (requires { params.group; })
    return params.group.loss_scale != nullptr && params.group.loss_scale->found_bad != 0;
  else
    return false;
}

template <typename Formula, typename Params>
concept Counts = requires(UpdateClock& clock, const Params& params) {
  Formula::advance(clock, params);
};

// True if each tensor has a clock.
template <typename Formula, typename Params>
concept CountsByTensor = Counts<Formula, Params> && requires(const Params& params) {
  params.group;
};

// The same parameters with a tensor's clock as the only one.
template <typename Params> LOCKSTEP_FORMULA Params at_clock(const Params& params, std::int64_t clock) {
  Params of_tensor = params;
  of_tensor.group.clock += clock;
  return of_tensor;
}

// On the host: advances the clocks, and calls update(tensor, formula) for each tensor. Tensors whose clocks agree share
// a formula.
template <typename Formula, typename Params, typename Update>
void for_each_tensor(std::span<const UpdateTensor> tensors, const Params& params, Update&& update) {
  if constexpr (CountsByTensor<Formula, Params>) {
    std::optional<Formula> formula;
    const UpdateClock *last = nullptr, *of_formula = nullptr;
    for (const UpdateTensor& tensor : tensors) {
      const Params of_tensor = at_clock(params, tensor.clock);
      UpdateClock* const clock = of_tensor.group.clock;
      if (std::exchange(last, clock) != clock) {
        Formula::advance(*clock, of_tensor);
        if (of_formula == nullptr || *of_formula != *clock) formula.emplace(of_tensor);
        of_formula = clock;
      }
      update(tensor, *formula);
    }
  } else {
    if constexpr (Counts<Formula, Params>) Formula::advance(*params.clock, params);
    const Formula formula(params);
    for (const UpdateTensor& tensor : tensors) update(tensor, formula);
  }
}

// The values that every optimizer's formula reads first.
struct Group {
  float lr, unscale, decay;
  LOCKSTEP_FORMULA explicit Group(const GroupStep& group)
      : lr(*group.lr),
        unscale(group.loss_scale == nullptr ? 1.0F : 1 / group.loss_scale->scale),
        decay(group.weight_decay) {}
};

}  // namespace lockstep::updates
