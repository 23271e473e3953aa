// A picture of curves over two logarithmic axes, as an SVG file that stands alone.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/train/files/xml_text.h"

namespace lockstep::bench {

struct PlotPoint {
  double x, y;
};

// How an axis is divided and what its marks say.
struct PlotAxis {
  std::string label;
  double base = 10;  // marks stand at powers of it; 10: also at multiples of these on a short axis
  std::function<std::string(double)> text = {};  // of a mark; empty: the number
};

PlotAxis bytes_axis(std::string label);               // powers of two: 4 B, 1 KiB, 1 MiB
PlotAxis microseconds_axis(std::string label);        // values in us, marks in ns, us, ms or s
PlotAxis count_axis(std::string label, double base);  // 2, 4, ..., 4,096

class LogLogPlot {
 public:
  LogLogPlot(std::string title, PlotAxis x, PlotAxis y)
      : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)) {}

  // A logarithm knows no zero: points that are not positive and finite are left out, the line breaks there, and the
  // picture says so at its foot.
  void add_curve(const std::string& name, const std::vector<PlotPoint>& points);
  void add_note(const std::string& text) { notes_.push_back(text); }  // a line at the foot

  // Throws InvalidArgument when no curve has a point that can be drawn.
  std::string svg() const;
  // The same, and FileError with path and reason when the file cannot be written.
  void write(const std::string& path) const;

 private:
  struct Curve {
    std::string name;
    std::vector<std::vector<PlotPoint>> pieces;
  };
  double picture_width() const;

  std::string title_;
  PlotAxis x_, y_;
  std::vector<Curve> curves_;  // with a point at least
  std::vector<std::string> notes_;
};

// Marks between `low` and `high` for an axis of this base, at most `most`: what the picture uses, a pure function.
std::vector<double> log_marks(double low, double high, double base, std::size_t most);

struct PlotRange {
  double low, high;
};
// From mark to mark around `values`, so that at least two marks are seen even when all values are the same.
PlotRange range_around(PlotRange values, double base);

using lockstep::xml_text;

}  // namespace lockstep::bench
