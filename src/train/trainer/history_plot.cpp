// The plot of a history: a panel for each value, below each other, over the same epochs.
#include "lockstep/core/error.h"
#include "lockstep/train/history.h"
#include "src/train/files/plot.h"
#include "src/train/files/svg.h"

namespace lockstep::train {

namespace {

constexpr double kPanelHeight = 180;

void add_values(Plot& panel, const std::string& name, const std::vector<std::int64_t>& numbers,
                const std::vector<double>& values) {
  std::vector<PlotPoint> points;
  for (std::size_t i = 0; i < values.size(); ++i) points.push_back({static_cast<double>(numbers[i]), values[i]});
  panel.add_curve(name, points);
}

}  // namespace

std::string History::svg() const {
  if (numbers_.empty()) throw InvalidArgument("History::svg: nothing to plot: no epoch has ended");
  const auto column_named = [&](const std::string& name) -> const std::vector<double>* {
    for (const auto& [each, values] : columns_)
      if (each == name) return &values;
    return nullptr;
  };
  std::vector<Plot> panels;
  for (const auto& [name, values] : columns_) {
    const bool is_validation = name.rfind("val_", 0) == 0;
    if (is_validation && column_named(name.substr(4)) != nullptr) continue;  // it has a curve in that panel
    Plot panel(name, {.label = "epoch", .base = PlotAxis::kLinear, .least_step = 1}, {.base = PlotAxis::kLinear},
               kPanelHeight);
    panel.show_x({static_cast<double>(numbers_.front()), static_cast<double>(numbers_.back())});
    add_values(panel, name, numbers_, values);
    if (const auto* validation = column_named("val_" + name)) add_values(panel, "val_" + name, numbers_, *validation);
    if (!panel.is_empty()) panels.push_back(std::move(panel));
  }
  return Plot::stacked_svg(panels);
}

void History::plot(const std::string& path) const { svg::write(path, svg()); }

}  // namespace lockstep::train
