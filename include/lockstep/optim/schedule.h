// Learning rates as pure functions of the step, which counts from 0. There is no state to save or restore.
//
//   const optim::CosineRate rate{.peak = 0.1f, .total_steps = 10'000, .warmup_steps = 500};
//   sgd.set_lr(rate.at(step));
//
// at() throws InvalidArgument for a number of steps below 1, a warm-up longer than total_steps, or a divisor that is
// not above 0.
//
// Any function is a schedule: optim::Schedule rate = [](std::int64_t step) { return step < 100 ? 0.1f : 0.01f; };
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

// initial * factor^n, where n is the number of milestones up to the step (PyTorch's MultiStepLR). Milestones may be in
// any order; one that is listed twice counts twice.
struct StepRate {
  float initial;
  float factor;
  std::vector<std::int64_t> milestones;
  float at(std::int64_t step) const;
};

// initial * factor^floor(step / steps_per_stair) (TensorFlow's exponential_decay with staircase=True, PyTorch's
// StepLR).
struct StaircaseRate {
  float initial;
  float factor;
  std::int64_t steps_per_stair;
  float at(std::int64_t step) const;
};

// initial * factor^(step / steps) (TensorFlow's exponential_decay; with steps = 1 PyTorch's ExponentialLR).
struct ExponentialRate {
  float initial;
  float factor;
  std::int64_t steps = 1;
  float at(std::int64_t step) const;
};

// Linear from `start` to `peak` over the first warmup_steps (Goyal et al., "Accurate, Large Minibatch SGD", 2017,
// section 2.2), then lowest + (peak - lowest) * (1 + cos(pi * s / S)) / 2 in step s of the remaining S (Loshchilov and
// Hutter, "SGDR", ICLR 2017, equation 5, without restarts; PyTorch's CosineAnnealingLR). From total_steps on, the rate
// is `lowest`.
struct CosineRate {
  float peak;
  std::int64_t total_steps;
  std::int64_t warmup_steps = 0;
  float lowest = 0;
  float start = 0;
  float at(std::int64_t step) const;
};

// Rises from peak / start_divisor to peak by a cosine, then falls to start / end_divisor (Smith and Topin 2018; shape
// and defaults of PyTorch's OneCycleLR). Later steps keep the last rate.
struct OneCycleRate {
  float peak;
  std::int64_t total_steps;
  float warmup_share = 0.3f;
  float start_divisor = 25;
  float end_divisor = 1e4f;
  float at(std::int64_t step) const;
};

// Any of these, or a function of the step, for code that selects the schedule at run time.
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
