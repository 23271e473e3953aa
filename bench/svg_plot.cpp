#include "bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

constexpr double kWidth = 860, kHeight = 480, kLeft = 84, kRight = 24, kTop = 44, kBottom = 58;
constexpr double kLineHeight = 20, kCharacter = 7.2;  // of the legend

// Told apart also by readers who see few colors (Okabe and Ito 2008).
constexpr std::array kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"};
constexpr std::array kDashes = {"", "7 4", "2 3"};  // after all colors have been used

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// A range of values and the pixels that it covers.
struct Scale {
  double low, high, from, to;
  double at(double value) const { return from + (to - from) * std::log(value / low) / std::log(high / low); }
};

Scale scale_over(double low, double high, double from, double to) {
  if (high / low < 1.5) {  // one value, or nearly
    low /= 2;
    high *= 2;
  }
  const double margin = std::pow(high / low, 0.03);
  return {low / margin, high * margin, from, to};
}

std::string text_of(const PlotAxis& axis, double mark) { return escaped(axis.text ? axis.text(mark) : fmt::format("{:.4g}", mark)); }

std::string draw_axes(const PlotAxis& x_axis, const PlotAxis& y_axis, const Scale& x, const Scale& y) {
  std::string out;
  for (const double mark : log_marks(x.low, x.high, x_axis.base, 11)) {
    out += fmt::format(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#ddd"/>)", x.at(mark), y.from, y.to);
    out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                       "\n",
                       x.at(mark), y.from + 20, text_of(x_axis, mark));
  }
  for (const double mark : log_marks(y.low, y.high, y_axis.base, 12)) {
    out += fmt::format(R"(<line x1="{1:.1f}" y1="{0:.1f}" x2="{2:.1f}" y2="{0:.1f}" stroke="#ddd"/>)", y.at(mark), x.from, x.to);
    out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)"
                       "\n",
                       x.from - 8, y.at(mark) + 4, text_of(y_axis, mark));
  }
  out += fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" stroke="#888"/>)"
                     "\n",
                     x.from, y.to, x.to - x.from, y.from - y.to);
  out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
                     "\n",
                     (x.from + x.to) / 2, kHeight - 14, escaped(x_axis.label));
  out += fmt::format(R"svg(<text transform="translate(18 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg"
                     "\n",
                     (y.from + y.to) / 2, escaped(y_axis.label));
  return out;
}

std::string style_of(std::size_t curve) {
  const std::string dash = kDashes[curve / kColors.size() % kDashes.size()];
  return fmt::format(R"(stroke="{}" stroke-width="2" fill="none"{})", kColors[curve % kColors.size()],
                     dash.empty() ? "" : fmt::format(R"( stroke-dasharray="{}")", dash));
}

}  // namespace

std::vector<double> log_marks(double low, double high, double base, std::size_t most) {
  LOCKSTEP_CHECK(low > 0 && high >= low && base > 1 && most > 0, "marks from {} to {}, base {}", low, high, base);
  const auto powers = [&](double step) {
    std::vector<double> marks;
    for (double exponent = std::ceil(std::log(low) / std::log(step) - 1e-9); std::pow(step, exponent) <= high * (1 + 1e-9); ++exponent)
      marks.push_back(std::pow(step, exponent));
    return marks;
  };
  double step = base;
  std::vector<double> marks = powers(step);
  while (marks.size() > most) marks = powers(step *= base);
  if (base != 10 || step != base) return marks;
  std::vector<double> finer;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
    for (const double times : {1, 2, 5})
      if (power * times >= low && power * times <= high) finer.push_back(power * times);
  return finer.size() <= most ? finer : marks;
}

void LogLogPlot::add_curve(const std::string& name, std::vector<PlotPoint> points) {
  if (points.empty()) throw InvalidArgument("plot: curve '{}' has no points", name);
  for (std::size_t i = 0; i < points.size(); ++i)
    if (!(points[i].x > 0 && points[i].y > 0) || (i > 0 && points[i].x <= points[i - 1].x))
      throw InvalidArgument("plot: curve '{}', point ({}, {}): values must be positive and x must rise", name, points[i].x, points[i].y);
  curves_.push_back({name, std::move(points)});
}

std::string LogLogPlot::svg() const {
  LOCKSTEP_CHECK(!curves_.empty(), "a plot without curves");
  PlotPoint low = curves_[0].points[0], high = low;
  std::size_t longest = 0;
  for (const Curve& curve : curves_) {
    longest = std::max(longest, curve.name.size());
    for (const PlotPoint& point : curve.points) {
      low = {std::min(low.x, point.x), std::min(low.y, point.y)};
      high = {std::max(high.x, point.x), std::max(high.y, point.y)};
    }
  }
  // The legend stands beside the curves, never over them.
  const double legend = 44 + kCharacter * static_cast<double>(longest), width = kWidth + legend;
  const Scale x = scale_over(low.x, high.x, kLeft, kWidth - kRight), y = scale_over(low.y, high.y, kHeight - kBottom, kTop);
  std::string out =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" font-family="sans-serif" font-size="13">
<rect width="{0:.0f}" height="{1:.0f}" fill="white"/>
<text x="{2:.0f}" y="26" font-size="15">{3}</text>
)",
                  width, kHeight, kLeft, escaped(title_));
  out += draw_axes(x_, y_, x, y);
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    std::string path;
    for (const PlotPoint& point : curves_[i].points) path += fmt::format("{:.1f},{:.1f} ", x.at(point.x), y.at(point.y));
    path.pop_back();
    out += fmt::format("<polyline points=\"{}\" {}/>\n", path, style_of(i));
    for (const PlotPoint& point : curves_[i].points)
      out += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)", x.at(point.x), y.at(point.y), kColors[i % kColors.size()]);
    const double line = kTop + 12 + kLineHeight * static_cast<double>(i);
    out += fmt::format("\n<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" {3}/>", kWidth, line - 4, kWidth + 26,
                       style_of(i));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kWidth + 32, line, escaped(curves_[i].name));
  }
  return out + "</svg>\n";
}

void LogLogPlot::write(const std::string& path) const {
  std::ofstream file(path);
  file << svg();
  file.close();
  if (!file) throw FileError("{}: cannot be written", path);
}

}  // namespace lockstep::bench
