#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

float StaircaseRate::at(std::int64_t step) const {
  const auto stairs = static_cast<double>(step / std::max<std::int64_t>(steps_per_stair, 1));
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), stairs));
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
