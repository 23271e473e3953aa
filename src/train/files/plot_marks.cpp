#include "src/train/files/plot_marks.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"

namespace lockstep::train {

namespace {

constexpr std::size_t kEnoughMarks = 4;  // marks that make a decimal axis readable
constexpr double kMarkSlack = 1e-9;      // marks are compared with values that went through logarithms

std::vector<double> powers_between(double low, double high, double step) {
  std::vector<double> powers;
  for (double exponent = std::ceil(std::log(low) / std::log(step) - kMarkSlack);
       std::pow(step, exponent) <= high * (1 + kMarkSlack); ++exponent)
    powers.push_back(std::pow(step, exponent));
  return powers;
}

// Within a decade, from coarse to fine.
const std::vector<double> kTimes[] = {
    {1}, {1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9}};

std::vector<double> decimal_marks(double low, double high, const std::vector<double>& times) {
  std::vector<double> marks;
  for (const double power : powers_between(low / 10, high, 10))
    for (const double factor : times)
      if (power * factor >= low * (1 - kMarkSlack) && power * factor <= high * (1 + kMarkSlack))
        marks.push_back(power * factor);
  return marks;
}

std::vector<double> snap_marks(double low, double high, double base) {
  return base == 10 ? decimal_marks(low, high, kTimes[1]) : powers_between(low, high, base);
}

}  // namespace

std::vector<double> log_marks(double low, double high, double base, std::size_t most) {
  LOCKSTEP_CHECK(low > 0 && high >= low && base > 1 && most > 0, "marks from {} to {}, base {}", low, high, base);
  if (base == 10)
    for (const auto& times : kTimes)
      if (auto marks = decimal_marks(low, high, times); marks.size() >= kEnoughMarks && marks.size() <= most)
        return marks;
  for (const int stride : {1, 2, 4, 5})  // every 3rd power of two would give 8 B, 64 B, 512 B
    if (auto marks = powers_between(low, high, std::pow(base, stride)); marks.size() <= most) return marks;
  for (double step = std::pow(base, 10);; step *= step)
    if (auto marks = powers_between(low, high, step); marks.size() <= most) return marks;
}

PlotRange log_range_around(PlotRange values, double base) {
  const auto marks = snap_marks(values.low / base, values.high * base, base);
  PlotRange range{marks.front(), marks.back()};
  for (const double mark : marks)
    if (mark <= values.low * (1 + kMarkSlack)) range.low = mark;
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark)
    if (*mark >= values.high * (1 - kMarkSlack)) range.high = *mark;
  return range.high > range.low ? range : PlotRange{range.low / 2, range.high * 2};
}

std::vector<double> linear_marks(PlotRange range, double least_step) {
  const double span = range.high - range.low, power = std::pow(10, std::floor(std::log10(span / 4)));
  double step = power;
  for (const double times : {5.0, 2.0})
    if (step == power && span / (power * times) >= 4) step = power * times;
  step = std::max(step, least_step);
  std::vector<double> marks;
  for (double number = std::ceil(range.low / step - kMarkSlack); number * step <= range.high + step * kMarkSlack;
       ++number)
    marks.push_back(number * step);
  return marks;
}

PlotRange linear_range_around(PlotRange values) {
  if (values.high - values.low > 1e-12 * std::fabs(values.high)) return values;
  return {values.low - std::max(std::fabs(values.low) * 0.1, 1e-6),
          values.high + std::max(std::fabs(values.high) * 0.1, 1e-6)};
}

}  // namespace lockstep::train
