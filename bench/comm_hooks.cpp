// Times training steps with each comm hook, in turn, and counts the bytes that they send:
//   build/bench/comm_hooks --model mlp --ranks 2 --transport tcp [--hooks none,bf16] [--steps 4] [--rounds 3] [--json]
//   bench/rate_limited --model mlp --rates 100mbit 1gbit    the same between two machines, over networks of these rates
// Columns: wire_mbit_s, the rate at which one rank sends in an all-reduce of 4 MiB; step_ms, the median over the
// rounds, in each of which --steps steps of a hook follow each other; of_plain, the median of the rounds' ratios to no
// hook; sent_kb, the bytes that rank 0 writes to its sockets in a step (0 in shared memory), and sent_of_plain.
// local_sgd averages the weights once in --steps steps.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <cxxopts.hpp>
#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "bench/lib/bench_common.h"
#include "bench/lib/step_trainer.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"
#include "src/core/base/message_text.h"

namespace {

namespace ls = lockstep;
using ls::bench::rounded;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;  // the first step has other buckets, and factors begin in the third
constexpr std::size_t kWireFloats = std::size_t{1} << 20;

struct Options {
  std::string model, transport;
  std::vector<std::string> hooks;
  int ranks = 2, steps = 4, rounds = 3;
  bool json = false;
};

using MakeHook = std::function<ls::CommHook()>;

const std::vector<std::pair<std::string, MakeHook>>& known_hooks() {
  static const auto power_sgd = [](std::int64_t rank) {
    return ls::hooks::power_sgd({.matrix_rank = rank, .start_step = 2});
  };
  static const std::vector<std::pair<std::string, MakeHook>> all = {
      {"none", [] { return ls::CommHook(); }},
      {"bf16", [] { return ls::hooks::bf16(); }},
      {"fp16", [] { return ls::hooks::fp16(); }},
      {"int8", [] { return ls::hooks::int8(); }},
      {"power_sgd_1", [] { return power_sgd(1); }},
      {"power_sgd_4", [] { return power_sgd(4); }},
      {"top_k_1_percent", [] { return ls::hooks::top_k({.ratio = 0.01}); }},
      {"local_sgd", [] { return ls::hooks::no_op(); }},
  };
  return all;
}

Options parse(int argc, char** argv) {
  cxxopts::Options cli("comm_hooks", "Times training steps with each comm hook");
  using cxxopts::value;
  std::vector<std::string> names;
  for (const auto& [name, make] : known_hooks()) names.push_back(name);
  cxxopts::OptionAdder add = cli.add_options();
  add("model", "cifar10, cifar10-nolrn, mlp, resnet20 or gpt", value<std::string>()->default_value("cifar10"));
  add("hooks", fmt::format("some of {}, separated by commas; `none` is always included", ls::joined(names, ", ")),
      value<std::vector<std::string>>());
  add("ranks", "processes", value<int>()->default_value("2"));
  add("transport", "auto, shm or tcp", value<std::string>()->default_value("tcp"));
  add("steps", "steps per turn of a hook", value<int>()->default_value("4"));
  add("rounds", "turns of each hook", value<int>()->default_value("3"));
  add("json", "one JSON line per hook");
  add("help", "this text");
  const auto given = lockstep::examples::parse_naming_flags(cli, argc, argv);
  if (given.count("help") != 0) {
    fmt::print("{}", cli.help());
    std::exit(0);
  }
  if (!given.unmatched().empty())
    throw ls::InvalidArgument("comm_hooks: unknown argument '{}': --help lists the flags", given.unmatched().front());
  Options options{given["model"].as<std::string>(), given["transport"].as<std::string>(), names};
  if (given.count("hooks") != 0) options.hooks = given["hooks"].as<std::vector<std::string>>();
  for (const std::string& hook : options.hooks)
    if (std::find(names.begin(), names.end(), hook) == names.end())
      throw ls::InvalidArgument("comm_hooks: unknown hook '{}': --help lists them", hook);
  std::erase(options.hooks, "none");
  options.hooks.insert(options.hooks.begin(), "none");
  options.ranks = given["ranks"].as<int>();
  options.steps = given["steps"].as<int>();
  options.rounds = given["rounds"].as<int>();
  options.json = given.count("json") != 0;
  if (options.steps < 1 || options.rounds < 1)
    throw ls::InvalidArgument("comm_hooks: --steps and --rounds must be positive");
  return options;
}

struct Variant {
  Variant(const Options& options, std::string name, const std::shared_ptr<ls::ProcessGroup>& group)
      : hook(std::move(name)),
        trainer(options.model, group,
                {.hook = hook_named(hook), .average_period = hook == "local_sgd" ? options.steps : 0}) {}
  static ls::CommHook hook_named(const std::string& name) {
    const auto named = [&](const auto& known) { return known.first == name; };
    return std::find_if(known_hooks().begin(), known_hooks().end(), named)->second();
  }
  std::string hook;
  ls::bench::StepTrainer trainer;
  std::vector<double> step_ms = {}, sent = {};  // per round
};

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double wire_mbit_s(ls::ProcessGroup& group) {
  const ls::Buffer memory = group.allocate(kWireFloats * sizeof(float), ls::DeviceKind::kCpu);
  std::memset(memory.data(), 0, memory.bytes());
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    group.barrier();
    const std::uint64_t before = group.backend().counters().tcp_bytes;
    const auto start = Clock::now();
    group.all_reduce(memory.data(), kWireFloats, ls::DType::kFloat32);
    best = std::max(best, 8e-3 * static_cast<double>(group.backend().counters().tcp_bytes - before) / ms_since(start));
  }
  return best;
}

void take_turn(Variant& variant, ls::ProcessGroup& group, int steps) {
  group.barrier();
  const std::uint64_t before = group.backend().counters().tcp_bytes;
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) variant.trainer.run_step();
  double ms = ms_since(start) / steps;
  variant.sent.push_back(static_cast<double>(group.backend().counters().tcp_bytes - before) / steps);
  group.all_reduce(std::span(&ms, 1), ls::ReduceOp::kMax);
  variant.step_ms.push_back(ms);
}

double median_ratio(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) ratios.push_back(base[i] > 0 ? values[i] / base[i] : 0);
  return ls::bench::quantile(ratios, 0.5);
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const auto group = ls::init_process_group({.transport = options.transport, .device = &ls::cpu_device()});
  const double wire = wire_mbit_s(*group);
  std::list<Variant> variants;
  for (const std::string& hook : options.hooks) variants.emplace_back(options, hook, group);
  for (Variant& variant : variants)
    for (int i = 0; i < std::max(kWarmUp, variant.hook == "local_sgd" ? options.steps : 0); ++i)
      variant.trainer.run_step();
  for (int round = 0; round < options.rounds; ++round)
    for (Variant& variant : variants) take_turn(variant, *group, options.steps);
  if (group->rank() != 0) return 0;
  const Variant& plain = variants.front();
  ls::bench::Report report(options.json);
  for (const Variant& variant : variants)
    report.row({{"hook", variant.hook},
                {"model", options.model},
                {"ranks", group->world_size()},
                {"wire_mbit_s", rounded(wire, 0)},
                {"step_ms", rounded(ls::bench::quantile(variant.step_ms, 0.5), 2)},
                {"of_plain", rounded(median_ratio(variant.step_ms, plain.step_ms), 3)},
                {"sent_kb", rounded(1e-3 * ls::bench::quantile(variant.sent, 0.5), 1)},
                {"sent_of_plain", rounded(median_ratio(variant.sent, plain.sent), 3)}});
  return 0;
}

int start(int argc, char** argv) {
  setenv("OMP_NUM_THREADS", "1", 0);
  return ls::launch::spawn(parse(argc, argv).ranks, argc, argv, run);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("comm_hooks", start, argc, argv); }
