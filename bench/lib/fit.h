// The line time = alpha + beta * bytes that fits measured times best.
#pragma once

#include <optional>
#include <vector>

namespace lockstep::bench {

struct Point {
  double bytes;
  double us;
};

struct Fit {
  double alpha_us;       // latency
  double gb_per_s;       // 1 / beta
  double worst_percent;  // the largest distance of a point from the line, relative to the point
};

// Least squares of the relative error, so that a time of 1 us counts as much as one of 10 ms. Null if the points do not
// determine a rising line: fewer than two sizes, or a time that does not grow with size. The latency is never negative.
std::optional<Fit> fit_line(const std::vector<Point>& points);

}  // namespace lockstep::bench
