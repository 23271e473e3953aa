// Plots of curves as SVG files that stand alone: over linear or logarithmic axes, one plot or several below each other.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/train/files/plot_marks.h"

namespace lockstep::train {

struct PlotPoint {
  double x, y;
};

// How an axis is divided and what its marks say.
struct PlotAxis {
  std::string label = {};                        // empty: without
  double base = 10;                              // of a logarithmic axis: marks stand at its powers; kLinear
  double least_step = 0;                         // of a linear axis, between two marks; 1: whole numbers only
  std::function<std::string(double)> text = {};  // of a mark; empty: the number

  static constexpr double kLinear = 0;
  bool is_linear() const { return base == kLinear; }
};

class Plot {
 public:
  Plot(std::string title, PlotAxis x, PlotAxis y, double height = 400)
      : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)), height_(height) {}

  // The line breaks at a point that is not finite, or not positive on a logarithmic axis. A plot with a logarithmic
  // axis counts such points at its foot.
  void add_curve(const std::string& name, const std::vector<PlotPoint>& points);
  void show_x(PlotRange range) { shown_x_ = range; }                  // the axis has at least this range
  void add_note(const std::string& text) { notes_.push_back(text); }  // a line at the foot
  bool is_empty() const { return curves_.empty(); }                   // no curve has a point that can be drawn

  // Throws InvalidArgument when the plot is empty.
  std::string svg() const { return stacked_svg({*this}); }
  // The same, and FileError with path and reason when the file cannot be written.
  void write(const std::string& path) const;
  // Several plots in one figure, below each other.
  static std::string stacked_svg(const std::vector<Plot>& plots);

 private:
  struct Curve {
    std::string name;
    std::vector<std::vector<PlotPoint>> pieces;
  };
  struct Drawing {
    double width, height;
    std::string body;
  };
  bool can_draw(const PlotPoint& point) const;
  double bottom() const;
  double total_width() const;
  Drawing draw() const;

  std::string title_;
  PlotAxis x_, y_;
  double height_;              // of the frame, in px
  std::vector<Curve> curves_;  // with a point at least
  std::vector<std::string> notes_;
  std::optional<PlotRange> shown_x_;
};

}  // namespace lockstep::train
