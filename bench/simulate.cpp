// Models how long a training step takes on 2 to 4,096 ranks; bench/lib/cost_model.h has the formulas and their sources.
//
//   build/bench/all_reduce --ranks 2 -b 4 -e 64M --json-file shm.json
//   build/bench/simulate --fit shm.json --net-alpha-us 15 --net-gbps 12 --ranks-per-node 8 --compute-ms 120
//                        --bytes 100M --plot step.svg
//   build/bench/simulate --strategies       when do 16 GPUs on several machines equal 8 in one, by each strategy of
//                                           train/strategy.h; bench/lib/strategy_model.h has the formulas
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cxxopts.hpp>
#include <fstream>

#include "bench/lib/bench_common.h"
#include "bench/lib/cost_model.h"
#include "bench/lib/plot_axis.h"
#include "bench/lib/strategy_report.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/core/error.h"

namespace lockstep::bench {

namespace {

using Flags = cxxopts::ParseResult;
using Json = nlohmann::ordered_json;

constexpr int kMostRanks = 4096;
constexpr double kMostBuckets = 1e5;

struct Settings {
  Cluster cluster;
  TrainingStep step;
  bool json = false, by_strategy = false;
  StrategyQuestion question;
  std::string plot_file;
};

struct Row {
  int ranks;
  std::array<double, kAlgorithms.size()> us;  // per step
};

cxxopts::Options describe_flags() {
  const auto text = [](const char* value) { return cxxopts::value<std::string>()->default_value(value); };
  cxxopts::Options options(
      "simulate",
      "Time of a training step by number of ranks, for three kinds of all-reduce: a report of a model, not a "
      "promise. bench/lib/cost_model.h has the formulas.\n");
  options.custom_help("[flags]");
  options.add_options("Inside a machine")("alpha-us", "latency of a message", text("0.2"))(
      "gbps", "bandwidth of a rank, GB/s", text("10"))("fit", "both from a file of bench/all_reduce --json-file",
                                                       text(""))("ranks-per-node", "ranks of a machine", text("8"));
  options.add_options("Between machines")("net-alpha-us", "latency of a message", text("15"))(
      "net-gbps", "bandwidth of a machine, GB/s (100 Gbit/s: 12.5)", text("12.5"));
  options.add_options("A step")("compute-ms", "forward, backward and update of one rank", text("100"))(
      "bytes", "gradients; K, M and G are binary", text("100M"))("bucket-bytes", "size of one all-reduce", text("25M"));
  options.add_options("By strategy")("strategies", "when do --many GPUs on several machines equal --few in one?")(
      "few", "GPUs in one machine", text("8"))("many", "GPUs on several machines", text("16"))(
      "scaling", "weak: each GPU has --samples, however many there are; strong: --few GPUs have them, more GPUs fewer",
      text("weak"))("samples", "of a GPU in a step", text("32"))(
      "overlap", "share, 0 to 1, of the communication that can hide behind compute and does", text("1"))(
      "period", "steps between the averages of local_sgd", text("4"))(
      "servers", "of parameter_server, a machine each; 0: one on every machine", text("0"))(
      "micro-batches", "of model_parallel", text("32"))("input-bytes", "of a sample", text("588K"))(
      "output-bytes", "of a sample", text("4000"))("activation-bytes", "of a sample between two stages", text("784K"));
  options.add_options("Results")("json", "JSON lines")("plot", "SVG of the table", text(""))("h,help", "this");
  return options;
}

// A positive number of at most `most`, which only a typing error exceeds.
double read_number(const Flags& flags, const char* flag, double most, const char* unit) {
  const std::string text = flags[flag].as<std::string>();
  std::size_t used = 0;
  double number = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(number > 0 && number <= most))
    throw InvalidArgument("--{} '{}': expected a number above 0 and at most {:g}, in {}", flag, text, most, unit);
  return number;
}

double read_bytes(const Flags& flags, const char* flag) {
  const std::size_t bytes = parse_bytes(std::string("--") + flag, flags[flag].as<std::string>());
  if (bytes == 0 || bytes > 1ULL << 50)
    throw InvalidArgument("--{}: got {} bytes, expected 1 byte to 1024 TiB", flag, bytes);
  return static_cast<double>(bytes);
}

int read_ranks_per_node(const Flags& flags) {
  const double ranks = read_number(flags, "ranks-per-node", kMostRanks, "ranks");
  if (ranks != std::floor(ranks)) throw InvalidArgument("--ranks-per-node {}: expected a whole number", ranks);
  return static_cast<int>(ranks);
}

Link read_fit(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError("--fit {}: cannot be read", path);
  const Json document = Json::parse(file, nullptr, false);
  const auto number = [&](const char* pointer) {
    const Json::json_pointer place(pointer);
    return document.contains(place) && document[place].is_number() ? document[place].get<double>() : 0.0;
  };
  if (!document.is_object() || !document.contains("fit"))
    throw InvalidArgument("--fit {}: is not a file that bench/all_reduce --json-file has written", path);
  if (const Json::json_pointer place("/settings/collective");
      !document.contains(place) || document[place] != "all_reduce")
    throw InvalidArgument("--fit {}: contains no all_reduce", path);
  const double alpha_us = number("/fit/alpha_us"), gbps = number("/fit/gbps"), ranks = number("/settings/ranks");
  if (!(alpha_us > 0 && gbps > 0))
    throw InvalidArgument(
        "--fit {}: has no fit with a latency and a bandwidth above 0; measure small and large messages, for example "
        "with -b 4 "
        "-e 64M",
        path);
  if (!(ranks >= 2 && ranks <= kMostRanks))
    throw InvalidArgument("--fit {}: measured with {} ranks; at least 2 are needed", path, ranks);
  return link_of_fit(alpha_us, gbps, static_cast<int>(ranks));
}

Link read_local_link(const Flags& flags) {
  const std::string fit = flags["fit"].as<std::string>();
  if (flags.count("fit") == 0)
    return {read_number(flags, "alpha-us", 1e6, "us"), read_number(flags, "gbps", 1e5, "GB/s")};
  if (flags.count("alpha-us") != 0 || flags.count("gbps") != 0)
    throw InvalidArgument("--fit {} sets the same values as --alpha-us and --gbps: leave one or the other out", fit);
  return read_fit(fit);
}

int read_whole(const Flags& flags, const char* flag, int least, const char* unit) {
  const std::string text = flags[flag].as<std::string>();
  if (text == "0" && least == 0) return 0;
  const double number = read_number(flags, flag, kMostRanks, unit);
  if (number != std::floor(number)) throw InvalidArgument("--{} {}: expected a whole number", flag, text);
  return static_cast<int>(number);
}

StrategyQuestion read_question(const Flags& flags, const Settings& settings) {
  StrategyQuestion question{.local = settings.cluster.local, .net = settings.cluster.net};
  question.few = read_whole(flags, "few", 1, "GPUs");
  question.many = read_whole(flags, "many", 1, "GPUs");
  const std::string scaling = flags["scaling"].as<std::string>();
  if (scaling != "weak" && scaling != "strong")
    throw InvalidArgument("--scaling '{}': expected weak or strong", scaling);
  question.is_weak = scaling == "weak";
  const std::string overlap = flags["overlap"].as<std::string>();
  question.assumed = {.compute_us = settings.step.compute_us,
                      .gradient_bytes = settings.step.gradient_bytes,
                      .bucket_bytes = settings.step.bucket_bytes,
                      .samples = read_number(flags, "samples", 1e6, "samples"),
                      .input_bytes = read_bytes(flags, "input-bytes"),
                      .output_bytes = read_bytes(flags, "output-bytes"),
                      .activation_bytes = read_bytes(flags, "activation-bytes"),
                      .overlap = overlap == "0" ? 0 : read_number(flags, "overlap", 1, "shares"),
                      .average_period = read_whole(flags, "period", 1, "steps"),
                      .servers = read_whole(flags, "servers", 0, "servers"),
                      .micro_batches = read_whole(flags, "micro-batches", 1, "micro-batches")};
  return question;
}

Settings parse_settings(int argc, char** argv) {
  auto options = describe_flags();
  try {
    const Flags flags = lockstep::examples::parse_naming_flags(options, argc, argv);
    if (flags.count("help") != 0) {
      std::puts(options.help({"Inside a machine", "Between machines", "A step", "By strategy", "Results"}).c_str());
      std::exit(0);
    }
    if (!flags.unmatched().empty())
      throw InvalidArgument("unknown argument '{}'; see --help", flags.unmatched().front());
    Settings settings;
    settings.cluster.local = read_local_link(flags);
    settings.cluster.net = {read_number(flags, "net-alpha-us", 1e6, "us"), read_number(flags, "net-gbps", 1e5, "GB/s")};
    settings.cluster.ranks_per_node = read_ranks_per_node(flags);
    settings.step = {1e3 * read_number(flags, "compute-ms", 1e9, "ms"), read_bytes(flags, "bytes"),
                     read_bytes(flags, "bucket-bytes")};
    if (settings.step.gradient_bytes / settings.step.bucket_bytes > kMostBuckets)
      throw InvalidArgument("--bytes {} in buckets of {}: more than 100,000 buckets",
                            bytes_text(static_cast<std::size_t>(settings.step.gradient_bytes)),
                            bytes_text(static_cast<std::size_t>(settings.step.bucket_bytes)));
    settings.json = flags.count("json") != 0;
    settings.by_strategy = flags.count("strategies") != 0;
    if (settings.by_strategy) settings.question = read_question(flags, settings);
    settings.plot_file = flags["plot"].as<std::string>();
    if (flags.count("plot") != 0 && settings.plot_file.empty()) throw InvalidArgument("--plot: expected a file name");
    return settings;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // the parser's own, whose name depends on its version
    throw InvalidArgument("{}; see --help", error.what());
  }
}

std::vector<std::string> describe(const Settings& settings) {
  const Cluster& cluster = settings.cluster;
  const TrainingStep& step = settings.step;
  const auto bytes = [](double number) { return bytes_text(static_cast<std::size_t>(number)); };
  return {fmt::format("{} of gradients in buckets of {}; compute {:g} ms a step", bytes(step.gradient_bytes),
                      bytes(step.bucket_bytes), step.compute_us / 1e3),
          fmt::format("inside a machine ({} ranks) {:.4g} us + bytes / {:.4g} GB/s, between machines {:.4g} us + bytes "
                      "/ {:.4g} GB/s",
                      cluster.ranks_per_node, cluster.local.alpha_us, cluster.local.gbps, cluster.net.alpha_us,
                      cluster.net.gbps),
          std::string(kCaution) + ": no contention, no stragglers, and communication that takes nothing from compute"};
}

void print_rows(const Settings& settings, const std::vector<Row>& rows) {
  Report report(settings.json);
  for (const auto& [ranks, us] : rows) {
    Json row = {{"ranks", ranks}, {"machines", (ranks - 1) / settings.cluster.ranks_per_node + 1}};
    for (std::size_t i = 0; i < us.size(); ++i)
      row[std::string(name_of(kAlgorithms[i])) + "_ms"] = rounded(us[i] / 1e3, 3);
    const auto best = static_cast<std::size_t>(std::min_element(us.begin(), us.end()) - us.begin());
    row["best"] = name_of(kAlgorithms[best]);
    row["efficiency_percent"] = rounded(100 * settings.step.compute_us / us[best], 1);
    report.row(row);
  }
}

void plot_rows(const Settings& settings, const std::vector<Row>& rows) {
  train::Plot plot("Time of a training step, by a model", count_axis("ranks", 2), microseconds_axis("time of a step"));
  for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
    std::vector<train::PlotPoint> points;
    for (const Row& row : rows) points.push_back({static_cast<double>(row.ranks), row.us[i]});
    plot.add_curve(name_of(kAlgorithms[i]), points);
  }
  std::vector<train::PlotPoint> compute;
  for (const Row& row : rows) compute.push_back({static_cast<double>(row.ranks), settings.step.compute_us});
  plot.add_curve("compute alone", compute);
  for (const std::string& line : describe(settings)) plot.add_note(line);
  plot.write(settings.plot_file);
}

int run(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (settings.by_strategy) {
    if (!settings.plot_file.empty()) throw InvalidArgument("--plot is not for --strategies, which prints a table");
    report_strategies(settings.question, settings.json);
    return 0;
  }
  std::vector<Row> rows;
  for (const int ranks : rank_counts(settings.cluster.ranks_per_node, kMostRanks)) {
    Row row{ranks, {}};
    for (std::size_t i = 0; i < kAlgorithms.size(); ++i)
      row.us[i] = step_us(settings.step,
                          [&](double bytes) { return all_reduce_us(kAlgorithms[i], settings.cluster, ranks, bytes); });
    rows.push_back(row);
  }
  if (!settings.plot_file.empty()) plot_rows(settings, rows);
  if (!settings.json)
    for (const std::string& line : describe(settings)) fmt::print("# {}\n", line);
  print_rows(settings, rows);
  const Cluster& cluster = settings.cluster;
  const TrainingStep& step = settings.step;
  if (settings.json)
    fmt::print("{}\n", Json{{"model",
                             {{"alpha_us", cluster.local.alpha_us},
                              {"gbps", cluster.local.gbps},
                              {"net_alpha_us", cluster.net.alpha_us},
                              {"net_gbps", cluster.net.gbps},
                              {"ranks_per_node", cluster.ranks_per_node},
                              {"compute_ms", step.compute_us / 1e3},
                              {"gradient_bytes", static_cast<std::size_t>(step.gradient_bytes)},
                              {"bucket_bytes", static_cast<std::size_t>(step.bucket_bytes)}}},
                            {"caution", kCaution}}
                           .dump());
  return 0;
}

}  // namespace

}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::run_main("simulate", lockstep::bench::run, argc, argv); }
