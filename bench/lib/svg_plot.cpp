#include "bench/lib/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

constexpr double kLeft = 86, kTop = 48, kPlotWidth = 640, kPlotHeight = 400,
                 kGap = 22;                                   // kGap: from the curves to the legend
constexpr double kSample = 38, kLine = 21, kCharacter = 7.4;  // of the legend; characters at 13 px
constexpr double kLeast = 1e-100, kMost = 1e100;              // of a value, so that no range overflows
constexpr std::size_t kMostMarksX = 12, kMostMarksY = 12;

// Colors that readers who see few colors tell apart (Okabe and Ito, 2008; without the yellow, which is too light on
// white).
constexpr std::array kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"};
constexpr std::array kDashes = {"", "8 4", "2 3", "9 3 2 3"};
constexpr std::array kMarkers = {
    "M{0:.1f} {1:.1f}m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",  // circle
    "M{0:.1f} {1:.1f}m-3.3 -3.3h6.6v6.6h-6.6z",                           // square
    "M{0:.1f} {1:.1f}m0 -4.4l4.2 7.2h-8.4z",                              // triangle
    "M{0:.1f} {1:.1f}m0 -4.8l4.2 4.8l-4.2 4.8l-4.2 -4.8z",                // diamond
    "M{0:.1f} {1:.1f}m0 4.4l4.2 -7.2h-8.4z",                              // triangle on its tip
    "M{0:.1f} {1:.1f}m-4.2 0h8.4m-4.2 -4.2v8.4",                          // plus
    "M{0:.1f} {1:.1f}m-3.4 -3.4l6.8 6.8m0 -6.8l-6.8 6.8",                 // cross
};

// A range of values and the pixels that it covers.
struct Scale {
  PlotRange range;
  double from, to;
  double at(double value) const {
    return from + (to - from) * std::log(value / range.low) / std::log(range.high / range.low);
  }
};

// A margin keeps markers off the frame.
Scale scale_around(PlotRange values, double base, double from, double to) {
  const PlotRange range = range_around(values, base);
  const double margin = std::pow(range.high / range.low, 0.025);
  return {{range.low / margin, range.high * margin}, from, to};
}

double text_width(const std::string& text) {
  const auto starts_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return kCharacter * static_cast<double>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     xml_text(text));
}

std::string line(double x1, double y1, double x2, double y2) {
  return fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

// Faint lines between the marks show that the axis is logarithmic: at 2, 3, ... 9 times a power of ten, or at every
// power of the base.
std::vector<double> faint_marks(const PlotRange& range, double base) {
  std::vector<double> marks;
  if (base != 10) return log_marks(range.low, range.high, base, 40);
  if (range.high / range.low > 1e7) return marks;
  for (double power = std::pow(10, std::floor(std::log10(range.low))); power <= range.high; power *= 10)
    for (int times = 2; times <= 9; ++times)
      if (power * times >= range.low && power * times <= range.high) marks.push_back(power * times);
  return marks;
}

std::string mark_text(const PlotAxis& axis, double mark) {
  return axis.text ? axis.text(mark) : fmt::format("{:.4g}", mark);
}

std::string draw_grid(const PlotAxis& x_axis, const PlotAxis& y_axis, const Scale& x, const Scale& y) {
  const auto at_x = [&](double mark) { return line(x.at(mark), y.from, x.at(mark), y.to); };
  const auto at_y = [&](double mark) { return line(x.from, y.at(mark), x.to, y.at(mark)); };
  std::string faint, grid, texts;
  for (const double mark : faint_marks(x.range, x_axis.base)) faint += at_x(mark);
  for (const double mark : faint_marks(y.range, y_axis.base)) faint += at_y(mark);
  for (const double mark : log_marks(x.range.low, x.range.high, x_axis.base, kMostMarksX)) {
    grid += at_x(mark);
    texts += text_at(x.at(mark), y.from + 19, "middle", mark_text(x_axis, mark));
  }
  for (const double mark : log_marks(y.range.low, y.range.high, y_axis.base, kMostMarksY)) {
    grid += at_y(mark);
    texts += text_at(x.from - 8, y.at(mark) + 4.5, "end", mark_text(y_axis, mark));
  }
  texts += text_at((x.from + x.to) / 2, y.from + 42, "middle", x_axis.label);
  texts += text_at(0, 0, "middle", y_axis.label,
                   fmt::format(R"x( transform="translate(18 {:.1f}) rotate(-90)")x", (y.from + y.to) / 2));
  return "<g stroke=\"#eeeeee\">\n" + faint + "</g>\n<g stroke=\"#cccccc\">\n" + grid + "</g>\n" + texts +
         fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" stroke="#555555"/>)",
                     x.from, y.to, x.to - x.from, y.from - y.to) +
         "\n";
}

std::string line_style(std::size_t index) {
  const std::string dash = kDashes[index % kDashes.size()];
  return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{}",
                     kColors[index % kColors.size()],
                     dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

std::string draw_markers(std::size_t index, const std::vector<PlotPoint>& pixels) {
  std::string shapes;
  for (const PlotPoint& pixel : pixels)
    shapes += fmt::format(fmt::runtime(kMarkers[index % kMarkers.size()]), pixel.x, pixel.y);
  return fmt::format("<path d=\"{0}\" fill=\"{1}\" stroke=\"{1}\" stroke-width=\"1.4\"/>\n", shapes,
                     kColors[index % kColors.size()]);
}

std::string draw_piece(std::size_t index, const std::vector<PlotPoint>& pixels) {
  std::string points;
  for (const PlotPoint& pixel : pixels)
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", pixel.x, pixel.y);
  return fmt::format("<polyline points=\"{}\" {}/>\n", points, line_style(index)) + draw_markers(index, pixels);
}

// Right of the frame, so that it never covers a curve.
std::string draw_legend(std::size_t index, double left, const std::string& name) {
  const double row = kTop + 8 + kLine * static_cast<double>(index);
  return fmt::format("<path d=\"M{:.1f} {:.1f}h30\" {}/>\n", left, row, line_style(index)) +
         draw_markers(index, {{left + 15, row}}) + text_at(left + kSample, row + 4.5, "start", name);
}

bool drawable(double value) { return value >= kLeast && value <= kMost; }  // false for NaN
bool drawable(const PlotPoint& point) { return drawable(point.x) && drawable(point.y); }

}  // namespace

void LogLogPlot::add_curve(const std::string& name, const std::vector<PlotPoint>& points) {
  Curve curve{name, {}};
  std::size_t dropped = 0;
  bool joined = false;
  for (const PlotPoint& point : points) {
    if (!drawable(point)) {
      ++dropped;
    } else if (joined) {
      curve.pieces.back().push_back(point);
    } else {
      curve.pieces.push_back({point});
    }
    joined = drawable(point);
  }
  if (points.empty()) add_note(fmt::format("{}: no points", name));
  if (dropped > 0)
    add_note(fmt::format("{}: {} of {} points not drawn (not positive, or not finite)", name, dropped, points.size()));
  if (!curve.pieces.empty()) curves_.push_back(std::move(curve));
}

std::string LogLogPlot::svg() const {
  if (curves_.empty())
    throw InvalidArgument("plot '{}': nothing to draw: no curve has a point with positive, finite values", title_);
  PlotPoint low = curves_[0].pieces[0][0], high = low;
  for (const Curve& curve : curves_)
    for (const auto& piece : curve.pieces)
      for (const PlotPoint& point : piece) {
        low = {std::min(low.x, point.x), std::min(low.y, point.y)};
        high = {std::max(high.x, point.x), std::max(high.y, point.y)};
      }
  const double right = kLeft + kPlotWidth, bottom = kTop + kPlotHeight;
  const double foot = std::max(bottom + 68, kTop + 12 + kLine * static_cast<double>(curves_.size()));
  const double width = picture_width(), height = foot + 18 * static_cast<double>(notes_.size());
  const Scale x = scale_around({low.x, high.x}, x_.base, kLeft, right),
              y = scale_around({low.y, high.y}, y_.base, bottom, kTop);

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#111111\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
      width, height);
  out += text_at(kLeft, 30, "start", title_, R"( font-size="16" font-weight="bold")") + draw_grid(x_, y_, x, y);
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    for (auto piece : curves_[i].pieces) {
      for (PlotPoint& point : piece) point = {x.at(point.x), y.at(point.y)};
      out += draw_piece(i, piece);
    }
    out += draw_legend(i, right + kGap, curves_[i].name);
  }
  for (std::size_t i = 0; i < notes_.size(); ++i)
    out +=
        text_at(kLeft, foot + 4 + 18 * static_cast<double>(i), "start", notes_[i], R"( font-size="12" fill="#444444")");
  return out + "</svg>\n";
}

double LogLogPlot::picture_width() const {
  const double right = kLeft + kPlotWidth;
  double width = std::max(right, kLeft + 1.3 * text_width(title_));
  for (const Curve& curve : curves_) width = std::max(width, right + kGap + kSample + text_width(curve.name));
  for (const std::string& note : notes_) width = std::max(width, kLeft + 0.92 * text_width(note));
  return width + 16;
}

void LogLogPlot::write(const std::string& path) const {
  const std::string text = svg();
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw FileError("{}: the picture cannot be written: {}", path,
                    errno != 0 ? std::strerror(errno) : "unknown reason");
}

}  // namespace lockstep::bench
