// Learning rates as pure functions of the step: nothing to save, nothing to restore.
#pragma once

#include <cstdint>

namespace lockstep::optim {

struct ConstantRate {
  float rate;
  float at(std::int64_t) const { return rate; }
};

// initial * factor^(step / steps_per_stair), whole stairs (TensorFlow's exponential_decay with staircase=True).
struct StaircaseRate {
  float initial;
  float factor;
  std::int64_t steps_per_stair;
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

}  // namespace lockstep::optim
