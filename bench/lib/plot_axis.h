// Logarithmic axes with units.
#pragma once

#include <string>

#include "src/train/files/plot.h"

namespace lockstep::bench {

train::PlotAxis bytes_axis(std::string label);               // powers of two: 4 B, 1 KiB, 1 MiB
train::PlotAxis microseconds_axis(std::string label);        // values in us, marks in ns, us, ms or s
train::PlotAxis count_axis(std::string label, double base);  // 2, 4, ..., 4,096

}  // namespace lockstep::bench
