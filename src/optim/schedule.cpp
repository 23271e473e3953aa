#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

float StaircaseRate::at(std::int64_t step) const {
  const auto stairs = static_cast<double>(step / std::max<std::int64_t>(steps_per_stair, 1));
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), stairs));
}

float StepRate::at(std::int64_t step) const {
  const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t milestone) { return milestone <= step; });
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), static_cast<double>(passed)));
}

float ExponentialRate::at(std::int64_t step) const {
  const double share = static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(steps, 1));
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), share));
}

float CosineRate::at(std::int64_t step) const {
  if (step < warmup_steps)
    return static_cast<float>(start + (static_cast<double>(peak) - start) * static_cast<double>(step) / static_cast<double>(warmup_steps));
  if (step >= total_steps) return lowest;
  const double share = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return static_cast<float>(lowest + (static_cast<double>(peak) - lowest) / 2 * (1 + std::cos(std::numbers::pi * share)));
}

float OneCycleRate::at(std::int64_t step) const {
  const double initial = static_cast<double>(peak) / start_divisor, lowest = initial / end_divisor;
  const double last = static_cast<double>(total_steps - 1);
  const double top = std::max(warmup_share * static_cast<double>(total_steps) - 1, 0.0);  // the step of the peak, may be broken
  const double now = std::clamp(static_cast<double>(step), 0.0, std::max(last, 0.0));
  const auto cosine = [](double from, double to, double share) { return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * share)); };
  if (now <= top) return static_cast<float>(cosine(initial, peak, top > 0 ? now / top : 1));
  return static_cast<float>(cosine(peak, lowest, last > top ? (now - top) / (last - top) : 1));
}

}  // namespace lockstep::optim
