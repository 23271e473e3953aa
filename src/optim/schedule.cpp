#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/core/error.h"

namespace lockstep::optim {

namespace {

void require_steps(const char* rate, const char* name, std::int64_t steps) {
  if (steps < 1) throw InvalidArgument("{}: got {} {}, expected at least 1", rate, name, steps);
}

}  // namespace

float StaircaseRate::at(std::int64_t step) const {
  require_steps("StaircaseRate", "steps_per_stair", steps_per_stair);
  const auto stairs = static_cast<double>(step / steps_per_stair);
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), stairs));
}

float StepRate::at(std::int64_t step) const {
  const auto passed =
      std::count_if(milestones.begin(), milestones.end(), [&](std::int64_t milestone) { return milestone <= step; });
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), static_cast<double>(passed)));
}

float ExponentialRate::at(std::int64_t step) const {
  require_steps("ExponentialRate", "steps", steps);
  const double share = static_cast<double>(step) / static_cast<double>(steps);
  return static_cast<float>(initial * std::pow(static_cast<double>(factor), share));
}

float CosineRate::at(std::int64_t step) const {
  if (warmup_steps < 0 || warmup_steps > total_steps)
    throw InvalidArgument("CosineRate: got warmup_steps {}, expected 0 to total_steps, which is {}", warmup_steps,
                          total_steps);
  if (step < warmup_steps)
    return static_cast<float>(start + (static_cast<double>(peak) - start) * static_cast<double>(step) /
                                          static_cast<double>(warmup_steps));
  if (step >= total_steps) return lowest;
  const double share = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return static_cast<float>(lowest +
                            (static_cast<double>(peak) - lowest) / 2 * (1 + std::cos(std::numbers::pi * share)));
}

float OneCycleRate::at(std::int64_t step) const {
  require_steps("OneCycleRate", "total_steps", total_steps);
  if (!(warmup_share >= 0 && warmup_share <= 1))
    throw InvalidArgument("OneCycleRate: got warmup_share {}, expected 0 to 1", warmup_share);
  if (!(start_divisor > 0) || !(end_divisor > 0))
    throw InvalidArgument("OneCycleRate: got start_divisor {} and end_divisor {}, expected both above 0", start_divisor,
                          end_divisor);
  const double initial = static_cast<double>(peak) / start_divisor, lowest = initial / end_divisor;
  const double last = static_cast<double>(total_steps - 1);
  const double top =
      std::max(warmup_share * static_cast<double>(total_steps) - 1, 0.0);  // step of the peak, may be fractional
  const double now = std::clamp(static_cast<double>(step), 0.0, std::max(last, 0.0));
  const auto cosine = [](double from, double to, double share) {
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * share));
  };
  if (now <= top) return static_cast<float>(cosine(initial, peak, top > 0 ? now / top : 1));
  return static_cast<float>(cosine(peak, lowest, last > top ? (now - top) / (last - top) : 1));
}

float Schedule::at(std::int64_t step) const {
  if (!at_) throw InvalidArgument("Schedule: the function that returns the rate is empty");
  return at_(step);
}

}  // namespace lockstep::optim
