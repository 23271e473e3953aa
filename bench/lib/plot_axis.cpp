#include "bench/lib/plot_axis.h"

#include <fmt/format.h>

#include "bench/lib/bench_common.h"

namespace lockstep::bench {

namespace {

constexpr double kSlack = 1e-9;  // marks went through logarithms

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

train::PlotAxis bytes_axis(std::string label) {
  return {.label = std::move(label), .base = 2, .text = [](double bytes) {
            return bytes < 1 || bytes > 1e18 ? fmt::format("{:.4g} B", bytes)
                                             : bytes_text(static_cast<std::size_t>(bytes));
          }};
}

train::PlotAxis microseconds_axis(std::string label) { return {.label = std::move(label), .text = time_text}; }

train::PlotAxis count_axis(std::string label, double base) {
  return {.label = std::move(label), .base = base, .text = count_text};
}

}  // namespace lockstep::bench
