// Where the marks of an axis stand. Pure functions.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::train {

struct PlotRange {
  double low, high;
};

// Marks between `low` and `high` of a logarithmic axis of this base, at most `most`.
std::vector<double> log_marks(double low, double high, double base, std::size_t most);
// From mark to mark around `values`, so that at least two marks are seen even when all values are the same.
PlotRange log_range_around(PlotRange values, double base);

// Marks of a linear axis: steps of 1, 2 or 5 times a power of ten, some four to nine of them, and none below
// `least_step`.
std::vector<double> linear_marks(PlotRange range, double least_step);
// The values, or some room around a single one.
PlotRange linear_range_around(PlotRange values);

}  // namespace lockstep::train
