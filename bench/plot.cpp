// Draws the pictures of the documentation from results in the repository:
//
//   build/bench/plot docs/results/figures.json docs/figures.svg                 bars: Lockstep next to its peers
//   build/bench/plot bench/results/cifar10.json docs/cifar10_accuracy.svg       accuracy by epoch
//
// scripts/plot-figures runs both. The curves of all_reduce, simulate and strategies are drawn by their own --plot.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/lib/bar_chart.h"
#include "lockstep/core/error.h"
#include "src/train/files/plot.h"
#include "src/train/files/svg.h"

namespace {

namespace ls = lockstep;
using Json = nlohmann::ordered_json;

// Three digits: "0.17 us", "241.9 ms", "4.40 ms".
std::string value_text(double value, const std::string& unit) {
  return fmt::format("{:.{}f} {}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2, unit);
}

// How many times as long as the first bar of the group: "5.84 x", "61 x".
std::string ratio_text(double ratio) { return fmt::format("{:.{}f} x", ratio, ratio >= 10 ? 0 : 2); }

ls::bench::BarChart chart_of(const Json& document) {
  ls::bench::BarChart chart{document.at("title"), {}, document.at("notes").get<std::vector<std::string>>()};
  for (const Json& group : document.at("groups")) {
    ls::bench::BarGroup drawn{group.at("title"), group.at("subtitle"), {}};
    const double first = group.at("bars").at(0).at("value");
    for (const Json& bar : group.at("bars")) {
      const double value = bar.at("value");
      std::string text = value_text(value, group.at("unit"));
      if (!drawn.bars.empty()) text += "  (" + ratio_text(value / first) + ")";
      drawn.bars.push_back({bar.at("name"), value, text});
    }
    chart.groups.push_back(std::move(drawn));
  }
  return chart;
}

ls::train::Plot accuracy_of(const Json& document) {
  std::vector<ls::train::PlotPoint> points;
  for (const Json& epoch : document.at("epochs"))
    points.push_back({epoch.at("epoch").get<double>(), 100 * epoch.at("accuracy").get<double>()});
  const std::string last = points.empty() ? "" : fmt::format("{:.1f} % in the end", points.back().y);
  ls::train::Plot plot(fmt::format("Accuracy on test images, {} ranks", document.at("ranks").get<int>()),
                       {.label = "epoch", .base = ls::train::PlotAxis::kLinear, .least_step = 1},
                       {.label = "percent", .base = ls::train::PlotAxis::kLinear}, /*height=*/240);
  plot.add_curve(last, points);
  return plot;
}

int run(int argc, char** argv) {
  if (argc != 3) throw ls::InvalidArgument("plot: got {} arguments, expected two: RESULT.json PICTURE.svg", argc - 1);
  const std::string source = argv[1], target = argv[2];
  std::ifstream file(source);
  if (!file) throw ls::FileError("{}: cannot be read", source);
  try {
    const Json document = Json::parse(file);
    ls::train::svg::write(target, document.contains("groups") ? chart_of(document).svg() : accuracy_of(document).svg());
  } catch (const Json::exception& error) {
    throw ls::InvalidArgument("{}: has neither \"groups\" of bars nor \"epochs\" with accuracies: {}", source,
                              error.what());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("plot", run, argc, argv); }
