// Trains the same model from the same weights, on the same samples, by each strategy of train/strategy.h and with the
// module DataParallel (train/data_parallel.h), in the loop that PyTorch's users write around it:
//   build/bench/strategies --model cifar10 --devices 2 [--steps 20] [--rounds 3] [--micro-batches 4]
//                          [--optimizer adam] [--json]
//   build/bench/strategies --devices 1 2 --plot samples.svg      also on one device, with a picture
// Columns: samples_per_s, the median of the rounds, in which the strategies take turns; bytes_per_step, the bytes that
// the busiest device sent and received in a step (not counted by DataParallel); peak_rss_mb, of all processes together;
// final_loss; for model_parallel bubble, the share of a step for which stages of equal speed wait, and idle, the mean
// share for which they waited in the last step; equals_ddp, "bits", "rounding" (with max_difference, the largest
// difference of any weight), or "no". The devices are logical devices of the CPU, with a share of the cores each; the
// global batch stays the same. parameter_server has one server in addition to its workers, and is synchronous;
// local_sgd averages weights every 4 steps, so its weights differ from ddp's.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cxxopts.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/lib/bench_common.h"
#include "bench/lib/plot_axis.h"
#include "bench/lib/train_step_models.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;  // steps that are not timed
constexpr int kServers = 1;
constexpr double kRoundingBound = 1e-3;  // for a weight, after the default number of steps

struct Options {
  std::string model, strategy, result, plot, optimizer;
  std::vector<int> devices;
  int steps = 20, rounds = 3, micro_batches = 0;
  bool json = false;
};

constexpr const char* kWrapper = ls::train::DataParallel::kKind;

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const ls::train::StrategyKind& kind : ls::train::strategies()) names.emplace_back(kind.name);
  names.emplace_back(kWrapper);
  return names;
}

const ls::train::StrategyCapabilities& capabilities_of(const std::string& name) {
  static const ls::train::StrategyCapabilities in_one_process;
  return name == kWrapper ? in_one_process : ls::train::strategy_named(name).capabilities;
}

Options parse(int argc, char** argv) {
  cxxopts::Options cli("strategies", "Compares the strategies on one model");
  using cxxopts::value;
  std::string names;
  for (const std::string& name : all_names()) names += (names.empty() ? "" : ", ") + name;
  cxxopts::OptionAdder add = cli.add_options();
  add("model", "cifar10, cifar10-nolrn, mlp or resnet20", value<std::string>()->default_value("cifar10"));
  add("devices", "number of logical devices; several numbers separated by spaces or commas",
      value<std::vector<int>>()->default_value("2"));
  add("strategy", names + "; default: all", value<std::string>()->default_value(""));
  add("optimizer", "sgd, momentum or adam; default: the model's own", value<std::string>()->default_value(""));
  add("steps", "timed steps, after the warm-up", value<int>()->default_value("20"));
  add("rounds", "turns of each strategy", value<int>()->default_value("3"));
  add("micro-batches", "number for model_parallel; must divide the samples of a step; 0: as many as devices",
      value<int>()->default_value("0"));
  add("plot", "a picture of samples/s over devices, as SVG", value<std::string>()->default_value(""), "FILE");
  add("json", "one JSON line per strategy");
  add("result", "for internal use", value<std::string>()->default_value(""));
  add("help", "this text");
  const auto given = lockstep::examples::parse_naming_flags(cli, argc, argv);
  if (given.count("help") != 0) {
    fmt::print("{}", cli.help());
    std::exit(0);
  }
  Options options{given["model"].as<std::string>(),     given["strategy"].as<std::string>(),
                  given["result"].as<std::string>(),    given["plot"].as<std::string>(),
                  given["optimizer"].as<std::string>(), given["devices"].as<std::vector<int>>()};
  for (const std::string& word : given.unmatched()) {  // --devices 1 2
    int devices = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), devices);
    if (given.count("devices") == 0 || read.ec != std::errc() || read.ptr != word.data() + word.size())
      throw ls::InvalidArgument("strategies: unknown argument '{}': --help lists the flags", word);
    options.devices.push_back(devices);
  }
  options.steps = given["steps"].as<int>();
  options.rounds = given["rounds"].as<int>();
  options.micro_batches = given["micro-batches"].as<int>();
  options.json = given.count("json") != 0;
  if (options.model == "gpt")
    throw ls::InvalidArgument(
        "strategies: --model gpt: expected a model of layers in a row, which every strategy can divide");
  if (options.steps < 1 || options.rounds < 1)
    throw ls::InvalidArgument("strategies: --steps and --rounds must be positive");
  if (options.micro_batches < 0) throw ls::InvalidArgument("strategies: --micro-batches must not be negative");
  for (const int devices : options.devices)
    if (devices < 1 || devices > 64) throw ls::InvalidArgument("strategies: --devices {}: expected 1 to 64", devices);
  if (!options.strategy.empty()) capabilities_of(options.strategy);  // throws for a name that is unknown
  return options;
}

// -- one strategy, in processes of its own

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

ls::Tensor rows_of_rank(const ls::Tensor& all, const ls::ProcessGroup& group) {
  const std::int64_t each = all.shape()[0] / group.world_size();
  return ls::slice(all, 0, {.start = group.rank() * each, .stop = (group.rank() + 1) * each});
}

// The idle share in the last step; it is measured only for strategies with a pipeline.
double mean_idle(ls::train::Strategy& strategy) {
  const auto* const stages = strategy.as<ls::train::PipelineStages>();
  if (stages == nullptr) return 0;
  const std::vector<double> idle = stages->bubble().idle;
  return std::accumulate(idle.begin(), idle.end(), 0.0) / static_cast<double>(idle.size());
}

struct Figures {
  double seconds = 0, loss = 0, idle = 0;
};

Figures train(const Options& options, ls::train::Strategy& strategy, ls::ProcessGroup& workers,
              const ls::bench::TrainStepModel& sample) {
  const ls::Tensor inputs = rows_of_rank(sample.inputs, workers), labels = rows_of_rank(sample.labels, workers);
  for (int i = 0; i < kWarmUp; ++i) strategy.step(inputs, labels);
  workers.barrier();
  Figures figures;
  const auto begin = Clock::now();
  for (int i = 0; i < options.steps; ++i) figures.loss = strategy.step(inputs, labels);
  figures.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  figures.idle = mean_idle(strategy);
  workers.all_reduce(std::span(&figures.loss, 1), ls::ReduceOp::kAvg);
  if (auto* const averager = strategy.as<ls::train::WeightAverager>()) averager->average_weights();
  if (workers.rank() == 0)
    ls::train::save_safetensors(options.result + ".safetensors", strategy.model().named_parameters());
  return figures;
}

void write_figures(const Options& options, const Figures& measured, std::int64_t batch, nlohmann::json others) {
  others["samples_per_s"] = static_cast<double>(batch) * options.steps / measured.seconds;
  others["final_loss"] = measured.loss;
  others["idle"] = measured.idle;
  std::ofstream(options.result) << others.dump() << "\n";
}

int run_wrapper(const Options& options) {
  ls::Device::configure({.cpu = options.devices.front()});
  ls::bench::TrainStepModel sample = ls::bench::make_model(options.model, 0);
  sample.module = std::move(ls::bench::make_model(options.model, 0).module);  // the second one, as with strategies
  ls::train::DataParallel model(*sample.module, {},
                                [&] { return std::move(ls::bench::make_model(options.model, 0).module); });
  const auto optimizer =
      ls::bench::make_optimizer(options.model, sample.module->named_parameters(), nullptr, options.optimizer);
  Figures measured;
  Clock::time_point begin;
  for (int i = -kWarmUp; i < options.steps; ++i) {
    if (i == 0) begin = Clock::now();
    optimizer->zero_grad();
    const ls::Tensor loss = ls::nn::cross_entropy(model(sample.inputs), sample.labels);
    loss.backward();
    optimizer->step();
    measured.loss = static_cast<double>(loss.item());
  }
  measured.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ls::train::save_safetensors(options.result + ".safetensors", sample.module->named_parameters());
  write_figures(options, measured, sample.batch, {{"peak_rss_mb", peak_rss_mb()}});
  return 0;
}

// Rank 0 writes the figures to options.result, and the weights next to it.
int run_strategy(const Options& options) {
  const ls::train::StrategyCapabilities& can = capabilities_of(options.strategy);
  if (!can.has_ranks) ls::Device::configure({.cpu = options.devices.front()});
  const auto group = ls::init_process_group({.device = &ls::cpu_device()});
  ls::bench::TrainStepModel sample = ls::bench::make_model(options.model, 0);
  sample.module.reset();  // each strategy creates its own model
  if (sample.batch % options.devices.front() != 0)
    throw ls::InvalidArgument("strategies: {} devices do not divide the {} samples of a step", options.devices.front(),
                              sample.batch);
  ls::train::StrategyOptions choices;
  if (can.has_stages) choices.micro_batches = options.micro_batches;
  auto strategy = ls::train::make_strategy(
      options.strategy,
      {.model = [&] { return std::move(ls::bench::make_model(options.model, 0).module); },
       .optimizer =
           [&](std::vector<ls::NamedTensor> parameters) {
             return ls::bench::make_optimizer(options.model, std::move(parameters), nullptr, options.optimizer);
           },
       .loss = [](const ls::Tensor& outputs,
                  const ls::Tensor& targets) { return ls::nn::cross_entropy(outputs, targets); }},
      choices);
  const auto* const stages = strategy->as<ls::train::PipelineStages>();
  const double bubble = stages == nullptr ? 0 : stages->bubble().expected;
  Figures measured;
  if (auto* const server = strategy->as<ls::train::ParameterHolder>())
    server->serve();
  else
    measured = train(options, *strategy, can.has_ranks ? *strategy->workers() : *group, sample);
  double busiest = 0, rss = peak_rss_mb();
  for (const ls::train::DeviceTraffic& each : strategy->traffic())
    busiest = std::max(busiest, static_cast<double>(each.sent + each.received));
  strategy.reset();  // a server waits for it
  group->all_reduce(std::span(&busiest, 1), ls::ReduceOp::kMax);
  group->all_reduce(std::span(&rss, 1), ls::ReduceOp::kSum);
  if (group->rank() != 0) return 0;
  write_figures(options, measured, sample.batch,
                {{"bytes_per_step", busiest / (options.steps + kWarmUp)}, {"peak_rss_mb", rss}, {"bubble", bubble}});
  return 0;
}

// -- all of them, in turn

struct Row {
  std::string strategy;
  int devices = 1;
  std::vector<double> samples_per_s = {};
  nlohmann::json figures = {};
  std::string weights = {};  // file name
};

void take_turn(const Options& options, const std::string& folder, Row& row) {
  const std::string result = fmt::format("{}/{}.{}", folder, row.strategy, row.devices);
  ls::launch::LaunchSpec spec;
  const ls::train::StrategyCapabilities& can = capabilities_of(row.strategy);
  spec.ranks = can.has_ranks ? row.devices : 1;
  if (can.has_servers) {  // as lockrun --ps 1 --workers N
    spec.servers = kServers;
    spec.workers = row.devices;
    spec.ranks = spec.servers + spec.workers;
  }
  spec.gpus = "none";
  spec.prefix = false;
  spec.command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                  "--model",
                  options.model,
                  "--strategy",
                  row.strategy,
                  "--devices",
                  std::to_string(row.devices),
                  "--steps",
                  std::to_string(options.steps),
                  "--micro-batches",
                  std::to_string(options.micro_batches),
                  "--result",
                  result};
  if (!options.optimizer.empty()) spec.command.insert(spec.command.end(), {"--optimizer", options.optimizer});
  if (const int code = ls::launch::launch(spec); code != 0)
    throw ls::Error("strategies: {} on {} devices ended with {}", row.strategy, row.devices, code);
  row.figures = nlohmann::json::parse(std::ifstream(result));
  row.samples_per_s.push_back(row.figures["samples_per_s"].get<double>());
  row.weights = result + ".safetensors";
}

double largest_difference(const std::string& file, const std::string& other) {
  const std::vector<ls::NamedTensor> a = ls::train::load_safetensors(file).tensors,
                                     b = ls::train::load_safetensors(other).tensors;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::int64_t j = 0; j < a[i].tensor.count(); ++j)
      largest = std::max(largest,
                         std::abs(static_cast<double>(a[i].tensor.data<float>()[j]) - b.at(i).tensor.data<float>()[j]));
  return largest;
}

void print_rows(const Options& options, const std::vector<Row>& rows) {
  ls::bench::Report report(options.json);
  const std::string reference = ls::train::strategies().front().name;  // ddp
  for (const Row& row : rows) {
    const auto is_ddp = [&](const Row& other) { return other.strategy == reference && other.devices == row.devices; };
    const auto ddp = std::find_if(rows.begin(), rows.end(), is_ddp);
    const double difference = ddp == rows.end() ? 0 : largest_difference(row.weights, ddp->weights);
    const char* equals = ddp == rows.end()             ? "not compared"
                         : difference == 0             ? "bits"
                         : difference < kRoundingBound ? "rounding"
                                                       : "no";
    const auto share = [&](const char* name) -> nlohmann::json {
      if (!capabilities_of(row.strategy).has_stages) return "-";
      return ls::bench::rounded(row.figures[name].get<double>(), 3);
    };
    const nlohmann::json bytes = row.figures.contains("bytes_per_step")
                                     ? nlohmann::json(std::llround(row.figures["bytes_per_step"].get<double>()))
                                     : nlohmann::json("-");
    report.row({{"strategy", row.strategy},
                {"model", options.model},
                {"devices", row.devices},
                {"samples_per_s", ls::bench::rounded(ls::bench::quantile(row.samples_per_s, 0.5), 1)},
                {"bytes_per_step", bytes},
                {"peak_rss_mb", ls::bench::rounded(row.figures["peak_rss_mb"].get<double>(), 1)},
                {"final_loss", ls::bench::rounded(row.figures["final_loss"].get<double>(), 5)},
                {"bubble", share("bubble")},
                {"idle", share("idle")},
                {"equals_ddp", equals},
                {"max_difference", difference}});
  }
}

void plot(const Options& options, const std::vector<Row>& rows) {
  ls::train::Plot picture(fmt::format("Training {} by each strategy", options.model),
                          ls::bench::count_axis("devices", 2), ls::bench::count_axis("samples/s", 10));
  std::map<std::string, std::vector<ls::train::PlotPoint>> curves;
  for (const Row& row : rows)
    curves[row.strategy].push_back({static_cast<double>(row.devices), ls::bench::quantile(row.samples_per_s, 0.5)});
  for (const auto& [name, points] : curves) picture.add_curve(name, points);
  picture.write(options.plot);
}

int compare(const Options& options) {
  const std::string folder =
      fmt::format("{}/lockstep-strategies-{}", std::filesystem::temp_directory_path().string(), getpid());
  std::filesystem::create_directories(folder);
  struct Removed {
    const std::string& folder;
    ~Removed() {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
    }
  } const removed{folder};
  std::vector<Row> rows;
  for (const int devices : options.devices)
    for (const std::string& name : all_names())
      if (options.strategy.empty() || options.strategy == name) rows.push_back({name, devices});
  for (int round = 0; round < options.rounds; ++round)
    for (Row& row : rows) take_turn(options, folder, row);
  print_rows(options, rows);
  if (!options.plot.empty()) plot(options, rows);
  return 0;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.result.empty()) return compare(options);
  return options.strategy == kWrapper ? run_wrapper(options) : run_strategy(options);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("strategies", run, argc, argv); }
