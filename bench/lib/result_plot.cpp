#include "bench/lib/result_plot.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "bench/lib/plot_axis.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

using Json = nlohmann::ordered_json;

// The collectives in the picture: "all_reduce", or "all_gather, broadcast".
std::string title_of(const std::vector<NamedResult>& results) {
  std::set<std::string> names;
  for (const NamedResult& result : results) names.insert(result.document["settings"].value("collective", "?"));
  std::string title;
  for (const std::string& name : names) title += (title.empty() ? "" : ", ") + name;
  return title + ": time by message size";
}

}  // namespace

std::vector<NamedResult> read_results(const std::vector<std::string>& files) {
  std::vector<NamedResult> results;
  for (const std::string& path : files) {
    std::ifstream file(path);
    if (!file) throw FileError("{}: cannot be read", path);
    const Json document = Json::parse(file, nullptr, false);
    if (document.is_discarded() || !document.is_object() || !document.contains("settings") ||
        !document.contains("rows"))
      throw InvalidArgument("{}: is not a table that --json-file has written", path);
    results.push_back({std::filesystem::path(path).stem().string(), document});
  }
  return results;
}

void plot_results(const std::vector<NamedResult>& results, const std::string& file) {
  train::Plot plot(title_of(results), bytes_axis("message size"),
                   microseconds_axis("time of a call (median, slowest rank)"));
  for (const auto& [name, document] : results) {
    std::vector<train::PlotPoint> points;
    for (const Json& row : document["rows"]) points.push_back({row.value("bytes", 0.0), row.value("time_us", 0.0)});
    plot.add_curve(name, points);
  }
  plot.write(file);
}

}  // namespace lockstep::bench
