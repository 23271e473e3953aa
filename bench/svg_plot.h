// A picture of curves over two logarithmic axes, as an SVG file that stands alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::bench {

struct PlotPoint {
  double x, y;
};

// How an axis is divided and what its marks say.
struct PlotAxis {
  std::string label;
  double base = 10;                              // marks stand at powers of it; 10: also at 2 and 5 times these where there is room
  std::function<std::string(double)> text = {};  // of a mark; empty: the number
};

class LogLogPlot {
 public:
  LogLogPlot(std::string title, PlotAxis x, PlotAxis y) : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)) {}

  // Points in rising order of x, all positive: throws InvalidArgument otherwise, or when there are none.
  void add_curve(const std::string& name, std::vector<PlotPoint> points);

  std::string svg() const;  // at least one curve
  // Throws FileError that names the path.
  void write(const std::string& path) const;

 private:
  struct Curve {
    std::string name;
    std::vector<PlotPoint> points;
  };
  std::string title_;
  PlotAxis x_, y_;
  std::vector<Curve> curves_;
};

// Marks between `low` and `high` for an axis of this base, at most `most`: what the picture uses, a pure function.
std::vector<double> log_marks(double low, double high, double base, std::size_t most);

}  // namespace lockstep::bench
