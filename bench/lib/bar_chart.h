// Groups of horizontal bars as one SVG picture. The longest bar of each group has the full width.
#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

struct Bar {
  std::string name;  // bars of one name have one color and one place in the legend
  double value;      // not negative
  std::string text;  // right of the bar
};

struct BarGroup {
  std::string title, subtitle;
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title;
  std::vector<BarGroup> groups;
  std::vector<std::string> notes;  // lines at the foot

  // Throws InvalidArgument when there is no bar, or one is negative, NaN or infinite.
  std::string svg() const;
};

}  // namespace lockstep::bench
