// Where marks stand on a logarithmic axis, and what they say.
#include <fmt/format.h>

#include <cmath>

#include "bench/lib/bench_common.h"
#include "bench/lib/svg_plot.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t kEnough = 4;  // marks that make a decimal axis readable
constexpr double kSlack = 1e-9;     // marks are compared with values that went through logarithms

std::vector<double> powers_between(double low, double high, double step) {
  std::vector<double> powers;
  for (double exponent = std::ceil(std::log(low) / std::log(step) - kSlack);
       std::pow(step, exponent) <= high * (1 + kSlack); ++exponent)
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
      if (power * factor >= low * (1 - kSlack) && power * factor <= high * (1 + kSlack))
        marks.push_back(power * factor);
  return marks;
}

std::vector<double> snap_marks(double low, double high, double base) {
  return base == 10 ? decimal_marks(low, high, kTimes[1]) : powers_between(low, high, base);
}

std::string time_text(double us) {
  if (us < 1 - kSlack) return fmt::format("{:.4g} ns", us * 1e3);
  if (us < 1e3 * (1 - kSlack)) return fmt::format("{:.4g} us", us);
  return us < 1e6 * (1 - kSlack) ? fmt::format("{:.4g} ms", us / 1e3) : fmt::format("{:.4g} s", us / 1e6);
}

std::string count_text(double count) {
  if (count < 1 || count >= 1e9) return fmt::format("{:.4g}", count);
  std::string text = fmt::format("{:.0f}", count);
  for (auto place = static_cast<std::ptrdiff_t>(text.size()) - 3; place > 0; place -= 3)
    text.insert(static_cast<std::size_t>(place), ",");
  return text;
}

}  // namespace

std::vector<double> log_marks(double low, double high, double base, std::size_t most) {
  LOCKSTEP_CHECK(low > 0 && high >= low && base > 1 && most > 0, "marks from {} to {}, base {}", low, high, base);
  if (base == 10)
    for (const auto& times : kTimes)
      if (auto marks = decimal_marks(low, high, times); marks.size() >= kEnough && marks.size() <= most) return marks;
  for (const int stride : {1, 2, 4, 5})  // every 3rd power of two would give 8 B, 64 B, 512 B
    if (auto marks = powers_between(low, high, std::pow(base, stride)); marks.size() <= most) return marks;
  for (double step = std::pow(base, 10);; step *= step)
    if (auto marks = powers_between(low, high, step); marks.size() <= most) return marks;
}

PlotRange range_around(PlotRange values, double base) {
  const auto marks = snap_marks(values.low / base, values.high * base, base);
  PlotRange range{marks.front(), marks.back()};
  for (const double mark : marks)
    if (mark <= values.low * (1 + kSlack)) range.low = mark;
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark)
    if (*mark >= values.high * (1 - kSlack)) range.high = *mark;
  return range.high > range.low ? range : PlotRange{range.low / 2, range.high * 2};
}

PlotAxis bytes_axis(std::string label) {
  return {std::move(label), 2, [](double bytes) {
            return bytes < 1 || bytes > 1e18 ? fmt::format("{:.4g} B", bytes)
                                             : bytes_text(static_cast<std::size_t>(bytes));
          }};
}

PlotAxis microseconds_axis(std::string label) { return {std::move(label), 10, time_text}; }

PlotAxis count_axis(std::string label, double base) { return {std::move(label), base, count_text}; }

}  // namespace lockstep::bench
