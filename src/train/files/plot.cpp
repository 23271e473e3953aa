#include "src/train/files/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/core/error.h"
#include "src/train/files/svg.h"

namespace lockstep::train {

namespace {

using svg::text_at;

constexpr double kLeft = 86, kTop = 48, kPlotWidth = 640, kGap = 22;  // kGap: from the curves to the legend
constexpr double kSample = 38, kLegendLine = 21;                      // of the legend
constexpr double kLeast = 1e-100, kMost = 1e100;                      // of a value on a logarithmic axis
constexpr std::size_t kMostMarksX = 12, kMostMarksY = 12;

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

// A range of values and the pixels that it covers. A margin keeps markers off the frame.
class Scale {
 public:
  Scale(const PlotAxis& axis, PlotRange values, double from, double to)
      : axis_(axis),
        range_(axis.is_linear() ? linear_range_around(values) : log_range_around(values, axis.base)),
        from_(from),
        to_(to) {
    const double margin = 0.025 * (position(range_.high) - position(range_.low));
    low_ = position(range_.low) - margin;
    high_ = position(range_.high) + margin;
  }

  double from() const { return from_; }
  double to() const { return to_; }
  double at(double value) const { return from_ + (to_ - from_) * (position(value) - low_) / (high_ - low_); }

  std::vector<double> marks(std::size_t most) const {
    if (!axis_.is_linear()) return log_marks(range_.low, range_.high, axis_.base, most);
    std::vector<double> all = linear_marks(range_, axis_.least_step), some;
    for (std::size_t i = 0; i < all.size(); i += 1 + (all.size() - 1) / most) some.push_back(all[i]);
    return some;
  }
  // Faint lines between the marks show that an axis is logarithmic: at 2, 3, ... 9 times a power of ten, or at every
  // power of the base.
  std::vector<double> faint_marks() const {
    std::vector<double> marks;
    if (axis_.is_linear()) return marks;
    if (axis_.base != 10) return log_marks(range_.low, range_.high, axis_.base, 40);
    if (range_.high / range_.low > 1e7) return marks;
    for (double power = std::pow(10, std::floor(std::log10(range_.low))); power <= range_.high; power *= 10)
      for (int times = 2; times <= 9; ++times)
        if (power * times >= range_.low && power * times <= range_.high) marks.push_back(power * times);
    return marks;
  }
  std::string text(double mark) const { return axis_.text ? axis_.text(mark) : fmt::format("{:.4g}", mark + 0.0); }
  const std::string& label() const { return axis_.label; }

 private:
  double position(double value) const { return axis_.is_linear() ? value : std::log(value); }

  const PlotAxis& axis_;
  PlotRange range_;
  double from_, to_, low_ = 0, high_ = 0;
};

std::string line(double x1, double y1, double x2, double y2) {
  return fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

std::string draw_grid(const Scale& x, const Scale& y) {
  const auto at_x = [&](double mark) { return line(x.at(mark), y.from(), x.at(mark), y.to()); };
  const auto at_y = [&](double mark) { return line(x.from(), y.at(mark), x.to(), y.at(mark)); };
  std::string faint, grid, texts;
  for (const double mark : x.faint_marks()) faint += at_x(mark);
  for (const double mark : y.faint_marks()) faint += at_y(mark);
  for (const double mark : x.marks(kMostMarksX)) {
    grid += at_x(mark);
    texts += text_at(x.at(mark), y.from() + 19, "middle", x.text(mark));
  }
  for (const double mark : y.marks(kMostMarksY)) {
    grid += at_y(mark);
    texts += text_at(x.from() - 8, y.at(mark) + 4.5, "end", y.text(mark));
  }
  if (!x.label().empty()) texts += text_at((x.from() + x.to()) / 2, y.from() + 42, "middle", x.label());
  if (!y.label().empty())
    texts += text_at(0, 0, "middle", y.label(),
                     fmt::format(R"x( transform="translate(18 {:.1f}) rotate(-90)")x", (y.from() + y.to()) / 2));
  return "<g class=\"faint\">\n" + faint + "</g>\n<g class=\"grid\">\n" + grid + "</g>\n" + texts +
         fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" class="frame"/>)",
                     x.from(), y.to(), x.to() - x.from(), y.from() - y.to()) +
         "\n";
}

std::string line_style(std::size_t index) {
  const std::string dash = kDashes[index % kDashes.size()];
  return fmt::format(
      "class=\"{}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" stroke-linejoin=\"round\"{}",
      svg::color_class(index), dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

std::string draw_markers(std::size_t index, const std::vector<PlotPoint>& pixels) {
  std::string shapes;
  for (const PlotPoint& pixel : pixels)
    shapes += fmt::format(fmt::runtime(kMarkers[index % kMarkers.size()]), pixel.x, pixel.y);
  return fmt::format(
      "<path d=\"{}\" class=\"{}\" fill=\"currentColor\" stroke=\"currentColor\" stroke-width=\"1.4\"/>\n", shapes,
      svg::color_class(index));
}

std::string draw_piece(std::size_t index, const std::vector<PlotPoint>& pixels) {
  std::string points;
  for (const PlotPoint& pixel : pixels)
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", pixel.x, pixel.y);
  return fmt::format("<polyline points=\"{}\" {}/>\n", points, line_style(index)) + draw_markers(index, pixels);
}

// Right of the frame, so that it never covers a curve.
std::string draw_legend(std::size_t index, double left, const std::string& name) {
  const double row = kTop + 8 + kLegendLine * static_cast<double>(index);
  return fmt::format("<path d=\"M{:.1f} {:.1f}h30\" {}/>\n", left, row, line_style(index)) +
         draw_markers(index, {{left + 15, row}}) + text_at(left + kSample, row + 4.5, "start", name);
}

bool can_draw_on(const PlotAxis& axis, double value) {
  return axis.is_linear() ? std::isfinite(value) : value >= kLeast && value <= kMost;  // false for NaN
}

}  // namespace

bool Plot::can_draw(const PlotPoint& point) const { return can_draw_on(x_, point.x) && can_draw_on(y_, point.y); }
double Plot::bottom() const { return kTop + height_; }

void Plot::add_curve(const std::string& name, const std::vector<PlotPoint>& points) {
  Curve curve{name, {}};
  std::size_t dropped = 0;
  bool joined = false;
  for (const PlotPoint& point : points) {
    if (!can_draw(point)) {
      ++dropped;
    } else if (joined) {
      curve.pieces.back().push_back(point);
    } else {
      curve.pieces.push_back({point});
    }
    joined = can_draw(point);
  }
  if (points.empty()) add_note(fmt::format("{}: no points", name));
  if (dropped > 0 && !(x_.is_linear() && y_.is_linear()))
    add_note(fmt::format("{}: {} of {} points not drawn (not positive, or not finite)", name, dropped, points.size()));
  if (!curve.pieces.empty()) curves_.push_back(std::move(curve));
}

Plot::Drawing Plot::draw() const {
  if (is_empty())
    throw InvalidArgument("plot '{}': nothing to draw: no curve has a point with positive, finite values", title_);
  PlotPoint low = curves_[0].pieces[0][0], high = low;
  if (shown_x_) low.x = shown_x_->low, high.x = shown_x_->high;
  for (const Curve& curve : curves_)
    for (const auto& piece : curve.pieces)
      for (const PlotPoint& point : piece) {
        low = {std::min(low.x, point.x), std::min(low.y, point.y)};
        high = {std::max(high.x, point.x), std::max(high.y, point.y)};
      }
  const double right = kLeft + kPlotWidth;
  const double foot =
      std::max(bottom() + (x_.label.empty() ? 40 : 68), kTop + 12 + kLegendLine * static_cast<double>(curves_.size()));
  const Scale x(x_, {low.x, high.x}, kLeft, right), y(y_, {low.y, high.y}, bottom(), kTop);
  std::string out = text_at(kLeft, 30, "start", title_, R"( font-size="16" font-weight="bold")") + draw_grid(x, y);
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    for (auto piece : curves_[i].pieces) {
      for (PlotPoint& point : piece) point = {x.at(point.x), y.at(point.y)};
      out += draw_piece(i, piece);
    }
    out += draw_legend(i, right + kGap, curves_[i].name);
  }
  for (std::size_t i = 0; i < notes_.size(); ++i)
    out +=
        text_at(kLeft, foot + 4 + 18 * static_cast<double>(i), "start", notes_[i], R"( font-size="12" class="quiet")");
  return {total_width(), foot + 18 * static_cast<double>(notes_.size()), out};
}

double Plot::total_width() const {
  const double right = kLeft + kPlotWidth;
  double width = std::max(right, kLeft + 1.3 * svg::text_width(title_));
  for (const Curve& curve : curves_) width = std::max(width, right + kGap + kSample + svg::text_width(curve.name));
  for (const std::string& note : notes_) width = std::max(width, kLeft + 0.92 * svg::text_width(note));
  return width + 16;
}

std::string Plot::stacked_svg(const std::vector<Plot>& plots) {
  double width = 0, height = 0;
  std::string body;
  for (const Plot& plot : plots) {
    const Drawing drawing = plot.draw();
    body += height > 0 ? fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", height, drawing.body)
                       : drawing.body;
    width = std::max(width, drawing.width);
    height += drawing.height;
  }
  return svg::document(std::max(width, kLeft), std::max(height, kTop), body);
}

void Plot::write(const std::string& path) const { svg::write(path, svg()); }

}  // namespace lockstep::train
