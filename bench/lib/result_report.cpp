#include "bench/lib/result_report.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "bench/lib/bench_common.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

using Json = nlohmann::ordered_json;

double algbw(const Row& row) {
  return row.p50 > 0 ? static_cast<double>(row.layout.message_bytes()) / row.p50 * 1e-3 : 0;
}

Json maybe(const std::optional<double>& value, int digits) { return value ? Json(rounded(*value, digits)) : Json(); }

std::string cell(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::optional<double> percent_of_bound(const Row& row) {
  if (!row.bound || row.p50 <= 0) return std::nullopt;
  return 100 * *row.bound / row.p50;
}

std::string reduction_of(const MeasureOptions& measure) {
  return measure.kind->reduces ? std::string(name_of(measure.op)) : "none";
}

Json row_as_json(const Settings& settings, int ranks, const Row& row) {
  const MeasureOptions& measure = settings.measure;
  return {{"ranks", ranks},
          {"collective", measure.kind->name},
          {"bytes", row.layout.message_bytes()},
          {"count", row.layout.count},
          {"dtype", measure.kind->moves_data() ? Json(name_of(measure.dtype)) : Json()},
          {"redop", reduction_of(measure)},
          {"root", measure.kind->has_root ? measure.root : -1},
          {"rounds", row.rounds},
          {"time_us", rounded(row.p50, 2)},
          {"algbw_gbps", rounded(algbw(row), 3)},
          {"busbw_gbps", rounded(algbw(row) * measure.kind->bus_factor(ranks), 3)},
          {"wrong", row.wrong},
          {"checked", measure.check ? "all" : "ends"},
          {"p50_us", rounded(row.p50, 2)},
          {"p90_us", rounded(row.p90, 2)},
          {"p99_us", rounded(row.p99, 2)},
          {"spread", rounded(row.spread, 3)},
          {"skew_us", maybe(row.skew, 2)},
          {"transfer_us", maybe(row.transfer, 2)},
          {"bound_us", maybe(row.bound, 2)},
          {"bound_percent", maybe(percent_of_bound(row), 1)},
          {"same_bits", row.same_bits ? Json(*row.same_bits) : Json()}};
}

}  // namespace

ResultReport::ResultReport(const Settings& settings, int ranks, const std::string& place)
    : settings_(settings), ranks_(ranks) {
  if (!settings.json) print_head(place);
}

void ResultReport::print_head(const std::string& place) const {
  const MeasureOptions& measure = settings_.measure;
  fmt::print("# {}, {}", measure.kind->name, place);
  if (measure.kind->moves_data())
    fmt::print(", {} memory, {}", measure.plain ? "plain" : "registered",
               measure.in_place ? "in place" : "out of place");
  fmt::print("\n");
  fmt::print(
      "{:>11} {:>11} {:>8} {:>10} {:>4} {:>10} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>6} {:>9} {:>10} {:>6}\n",
      "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "p50", "p90", "p99", "spread",
      "skew", "transfer", "bound");
  fmt::print(
      "{:>11} {:>11} {:>8} {:>10} {:>4} {:>10} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>6} {:>9} {:>10} {:>6}\n",
      "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "", "(us)", "(us)",
      "(%)");
  std::fflush(stdout);
}

void ResultReport::print_line(const Row& row) const {
  const MeasureOptions& measure = settings_.measure;
  fmt::print(
      "{:>11} {:>11} {:>8} {:>10} {:>4} {:>10.2f} {:>7.2f} {:>7.2f} {:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>6.2f} {:>9} "
      "{:>10} {:>6}\n",
      row.layout.message_bytes(), row.layout.count, measure.kind->moves_data() ? name_of(measure.dtype) : "-",
      reduction_of(measure), measure.kind->has_root ? measure.root : -1, row.p50, algbw(row),
      algbw(row) * measure.kind->bus_factor(ranks_), row.wrong, row.p50, row.p90, row.p99, row.spread,
      cell(row.skew, 2), cell(row.transfer, 2), cell(percent_of_bound(row), 1));
  std::fflush(stdout);
}

void ResultReport::add(const Row& row) {
  rows_.push_back(row_as_json(settings_, ranks_, row));
  points_.push_back({static_cast<double>(row.layout.message_bytes()), row.p50});
  wrong_ += row.wrong;
  if (row.same_bits) same_bits_ = same_bits_.value_or(true) && *row.same_bits;
  if (settings_.json) {
    fmt::print("{}\n", rows_.back().dump());
    std::fflush(stdout);
  } else {
    print_line(row);
  }
}

Json ResultReport::summary() const {
  Json fit;
  if (const auto line = fit_line(points_))
    fit = {{"alpha_us", rounded(line->alpha_us, 3)},
           {"gbps", rounded(line->gb_per_s, 3)},
           {"worst_percent", rounded(line->worst_percent, 1)}};
  return {{"fit", fit}, {"wrong", wrong_}, {"same_bits", same_bits_ ? Json(*same_bits_) : Json()}};
}

void ResultReport::finish() {
  if (settings_.json) {
    fmt::print("{}\n", summary().dump());
  } else {
    if (const auto line = fit_line(points_))
      fmt::print("# fit: time = {:.3f} us + bytes / {:.3f} GB/s; the worst point is {:.0f} % off\n", line->alpha_us,
                 line->gb_per_s, line->worst_percent);
    else if (settings_.measure.kind->moves_data())
      fmt::print("# fit: none; it needs at least two sizes, and times that grow\n");
    if (settings_.measure.kind->moves_data())
      fmt::print("# wrong elements: {} ({})\n", wrong_,
                 settings_.measure.check ? "all were checked" : "the ends of every part were checked");
    if (same_bits_)
      fmt::print("# same bits in all repeats{}: {}\n", settings_.measure.kind->same_on_all ? " and on all ranks" : "",
                 *same_bits_ ? "yes" : "NO");
  }
  std::fflush(stdout);
}

Json settings_as_json(const Settings& settings) {
  const MeasureOptions& measure = settings.measure;
  return {{"collective", measure.kind->name},
          {"dtype", name_of(measure.dtype)},
          {"redop", reduction_of(measure)},
          {"root", measure.kind->has_root ? measure.root : -1},
          {"ranks", settings.ranks},
          {"nodes", settings.nodes},
          {"sizes", settings.sizes},
          {"in_place", measure.in_place},
          {"memory", measure.plain ? "plain" : "registered"},
          {"device", measure.device == DeviceKind::kCpu ? "cpu" : "cuda"},
          {"check", measure.check},
          {"rounds", measure.rounds},
          {"backend", settings.backend},
          {"transport", settings.transport},
          {"overlap", settings.overlap}};
}

void write_document(const std::string& file, const Json& document) {
  std::ofstream out(file);
  out << document.dump(2) << '\n';
  out.close();
  if (!out) throw FileError("{}: cannot be written", file);
}

}  // namespace lockstep::bench
