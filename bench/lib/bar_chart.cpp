#include "bench/lib/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"
#include "src/train/files/svg.h"

namespace lockstep::bench {

namespace {

using train::svg::text_at;

constexpr double kLeft = 300, kBarWidth = 330, kRight = 150, kTop = 84;
constexpr double kBar = 13, kPitch = 17, kGroupGap = 14;  // height of a bar, from bar to bar, between groups

std::vector<std::string> names_of(const BarChart& chart) {
  std::vector<std::string> names;
  for (const BarGroup& group : chart.groups)
    for (const Bar& bar : group.bars) {
      if (!(bar.value >= 0) || std::isinf(bar.value))
        throw InvalidArgument("bar chart '{}': {} of '{}' is {}: a bar needs a finite length", chart.title, bar.name,
                              group.title, bar.value);
      if (std::find(names.begin(), names.end(), bar.name) == names.end()) names.push_back(bar.name);
    }
  if (names.empty()) throw InvalidArgument("bar chart '{}': nothing to draw: there are no bars", chart.title);
  return names;
}

std::string color_of(const std::vector<std::string>& names, const std::string& name) {
  return train::svg::color_class(static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin()));
}

std::string rectangle(double x, double y, double width, const std::string& color) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" class=\"{}\" fill=\"currentColor\"/>\n", x, y,
      width, kBar, color);
}

std::string draw_legend(const std::vector<std::string>& names) {
  std::string out;
  double x = 16;
  for (const std::string& name : names) {
    out += rectangle(x, 46, kBar, color_of(names, name)) + text_at(x + kBar + 6, 57, "start", name);
    x += kBar + 26 + train::svg::text_width(name);
  }
  return out;
}

std::string draw_group(const BarGroup& group, const std::vector<std::string>& names, double top) {
  double longest = 0;
  for (const Bar& bar : group.bars) longest = std::max(longest, bar.value);
  std::string out = text_at(kLeft - 12, top + 11, "end", group.title) +
                    text_at(kLeft - 12, top + 28, "end", group.subtitle, R"( font-size="12" class="quiet")");
  for (std::size_t i = 0; i < group.bars.size(); ++i) {
    const Bar& bar = group.bars[i];
    const double y = top + kPitch * static_cast<double>(i);
    const double width = longest > 0 ? std::max(kBarWidth * bar.value / longest, 1.0) : 1;  // a bar that is seen
    out += rectangle(kLeft, y, width, color_of(names, bar.name)) +
           text_at(kLeft + width + 7, y + 11, "start", bar.text, i == 0 ? R"( font-weight="bold")" : "");
  }
  return out;
}

}  // namespace

std::string BarChart::svg() const {
  const std::vector<std::string> names = names_of(*this);
  std::string body = text_at(16, 28, "start", title, R"( font-size="16" font-weight="bold")") + draw_legend(names);
  double top = kTop;
  for (const BarGroup& group : groups) {
    body += draw_group(group, names, top);
    top += kPitch * static_cast<double>(std::max<std::size_t>(group.bars.size(), 2)) + kGroupGap;
  }
  for (const std::string& note : notes)
    body += text_at(16, top += 18, "start", note, R"( font-size="12" class="quiet")");
  return train::svg::document(kLeft + kBarWidth + kRight, top + 16, body);
}

}  // namespace lockstep::bench
