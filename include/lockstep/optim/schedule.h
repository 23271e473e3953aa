// Learning rates as pure functions of the step, which counts from 0: nothing to save, nothing to restore.
//
//   const optim::CosineRate rate{.peak = 0.1f, .total_steps = 10'000, .warmup_steps = 500};
//   sgd.set_lr(rate.at(step));
//
// at() throws InvalidArgument that names a number of steps below 1, a warm-up longer than the whole, or a divisor that
// is not above 0.
//
// One by hand is any function: optim::Schedule rate = [](std::int64_t step) { return step < 100 ? 0.1f : 0.01f; };
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep::optim {

struct ConstantRate {
  float rate;
  float at(std::int64_t) const { return rate; }
};

// initial * factor^n, n the number of milestones that are not above the step (PyTorch's MultiStepLR). In any order; one
// named twice counts twice.
struct StepRate {
  float initial;
  float factor;
  std::vector<std::int64_t> milestones;
  float at(std::int64_t step) const;
};

// initial * factor^(step / steps_per_stair), whole stairs (TensorFlow's exponential_decay with staircase=True,
// PyTorch's StepLR).
struct StaircaseRate {
  float initial;
  float factor;
  std::int64_t steps_per_stair;
  float at(std::int64_t step) const;
};

// initial * factor^(step / steps), without stairs (TensorFlow's exponential_decay; with steps = 1 PyTorch's
// ExponentialLR).
struct ExponentialRate {
  float initial;
  float factor;
  std::int64_t steps = 1;
  float at(std::int64_t step) const;
};

// Linear from `start` to `peak` over the first warmup_steps (Goyal et al., "Accurate, Large Minibatch SGD", 2017,
// section 2.2), then lowest + (peak - lowest) * (1 + cos(pi * s / S)) / 2 in step s of the S that are left (Loshchilov
// and Hutter, "SGDR", ICLR 2017, equation 5, without restarts; PyTorch's CosineAnnealingLR). Steps from total_steps on
// keep `lowest`.
struct CosineRate {
  float peak;
  std::int64_t total_steps;
  std::int64_t warmup_steps = 0;
  float lowest = 0;
  float start = 0;
  float at(std::int64_t step) const;
};

// Up from peak / start_divisor to peak by a cosine, then down to start / end_divisor (Smith and Topin 2018; the shape
// and defaults of PyTorch's OneCycleLR). Steps beyond the last keep the last rate.
struct OneCycleRate {
  float peak;
  std::int64_t total_steps;
  float warmup_share = 0.3f;
  float start_divisor = 25;
  float end_divisor = 1e4f;
  float at(std::int64_t step) const;
};

// Any of these, or a function of the step: for code that is told at run time which one it is.
class Schedule {
 public:
  template <typename Rate, typename = std::enable_if_t<!std::is_same_v<std::decay_t<Rate>, Schedule>>>
  Schedule(Rate rate) {  // NOLINT(google-explicit-constructor): a rate is a schedule
    if constexpr (requires { rate.at(std::int64_t{}); })
      at_ = [rate = std::move(rate)](std::int64_t step) { return rate.at(step); };
    else
      at_ = std::move(rate);
  }
  float at(std::int64_t step) const;

 private:
  std::function<float(std::int64_t)> at_;
};

}  // namespace lockstep::optim
#pragma GCC visibility pop
