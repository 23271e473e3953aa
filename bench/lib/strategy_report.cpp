#include "bench/lib/strategy_report.h"

#include <fmt/format.h>

#include <cmath>

#include "bench/lib/bench_common.h"
#include "lockstep/core/error.h"
#include "lockstep/train/strategies.h"

namespace lockstep::bench {

namespace {

using Json = nlohmann::ordered_json;

std::vector<int> machine_counts(int gpus) {
  std::vector<int> counts;
  for (int machines = 2; machines <= gpus; ++machines)
    if (gpus % machines == 0) counts.push_back(machines);
  return counts;
}

double samples_per_s(const StrategyQuestion& question, const std::string& strategy, const GpuJob& job) {
  const StrategyAssumptions assumed = assumptions_for(question, job.gpus);
  return 1e6 * job.gpus * assumed.samples / strategy_step_us(strategy, assumed, question.local, question.net, job);
}

// In Gbit/s, see equal_gbps().
double equal_gbits(const StrategyQuestion& question, const std::string& strategy, int machines) {
  return 8 * equal_gbps(strategy, assumptions_for(question, question.few), assumptions_for(question, question.many),
                        question.local, question.net, {question.few, 1}, {question.many, machines});
}

Json number_or_word(double gbits) {
  if (gbits == 0) return "any";
  if (std::isinf(gbits)) return "never";
  return rounded(gbits, gbits < 1 ? 3 : 1);
}

void print_row(Report& report, const StrategyQuestion& question, const std::string& strategy, const GpuJob& job) {
  const StrategyAssumptions assumed = assumptions_for(question, job.gpus);
  const double speed = samples_per_s(question, strategy, job);
  const int servers = assumed.servers == 0 ? job.machines : assumed.servers;
  report.row({{"strategy", strategy},
              {"gpus", job.gpus},
              {"machines", job.machines},
              {"step_ms", rounded(1e3 * job.gpus * assumed.samples / speed, 2)},
              {"samples_per_s", rounded(speed, 1)},
              {"of_one_machine", rounded(speed / samples_per_s(question, strategy, {question.few, 1}), 2)},
              {"busiest_mb", rounded(busiest_bytes(strategy, assumed, job.gpus, servers) / 1e6, 1)},
              {"equal_at_gbit_per_s",
               job.machines == 1 ? Json("-") : number_or_word(equal_gbits(question, strategy, job.machines))}});
}

std::vector<std::string> describe(const StrategyQuestion& question) {
  const StrategyAssumptions& assumed = question.assumed;
  const auto bytes = [](double number) { return bytes_text(static_cast<std::size_t>(number)); };
  return {
      fmt::format("{} GPUs in one machine, {} on several; {} scaling: {}", question.few, question.many,
                  question.is_weak ? "weak" : "strong",
                  question.is_weak
                      ? fmt::format("each GPU computes {:g} samples in {:g} ms, however many there are",
                                    assumed.samples, assumed.compute_us / 1e3)
                      : fmt::format("{} GPUs compute {:g} samples each in {:g} ms, {} GPUs {:g} in {:g} ms",
                                    question.few, assumed.samples, assumed.compute_us / 1e3, question.many,
                                    assumptions_for(question, question.many).samples,
                                    assumptions_for(question, question.many).compute_us / 1e3)),
      fmt::format("{} of gradients, and of weights, in buckets of {}; {:g} % of what can hide behind compute does",
                  bytes(assumed.gradient_bytes), bytes(assumed.bucket_bytes), 100 * assumed.overlap),
      fmt::format("inside a machine {:.4g} us + bytes / {:.4g} GB/s, between machines {:.4g} us + bytes / {:.4g} GB/s "
                  "({:.4g} Gbit/s)",
                  question.local.alpha_us, question.local.gbps, question.net.alpha_us, question.net.gbps,
                  8 * question.net.gbps),
      fmt::format("local_sgd averages every {} steps; parameter_server has {}; model_parallel has {} micro-batches, {} "
                  "of activations a sample; data_parallel sends {} of inputs and {} of outputs a sample",
                  assumed.average_period,
                  assumed.servers == 0 ? "a server on each machine" : fmt::format("{} servers", assumed.servers),
                  assumed.micro_batches, bytes(assumed.activation_bytes), bytes(assumed.input_bytes),
                  bytes(assumed.output_bytes)),
      std::string(kCaution) + ": no contention, no stragglers, and communication that takes nothing from compute"};
}

// The strategy that does among machines what one of one process does in one.
std::string among_machines(const std::string& strategy) {
  return strategy == "mirrored" ? "ddp" : "parameter_server, with its variables in one place";
}

std::string answer_of(const StrategyQuestion& question, const std::string& strategy) {
  if (!spans_machines(strategy))
    return fmt::format("{}: one process has one machine; among machines it is {}", strategy, among_machines(strategy));
  std::string machines, speeds;
  for (const int count : machine_counts(question.many)) {
    const Json speed = number_or_word(equal_gbits(question, strategy, count));
    const char* const comma = machines.empty() ? "" : ", ";
    machines += fmt::format("{}{}", comma, count);
    speeds += fmt::format("{}{}", comma, speed.is_string() ? speed.get<std::string>() : speed.dump());
  }
  return fmt::format("{}: {} GPUs on {} machines equal {} in one at {} Gbit/s between machines", strategy,
                     question.many, machines, question.few, speeds);
}

Json model_of(const StrategyQuestion& question) {
  const StrategyAssumptions& assumed = question.assumed;
  return {{"few", question.few},
          {"many", question.many},
          {"scaling", question.is_weak ? "weak" : "strong"},
          {"alpha_us", question.local.alpha_us},
          {"gbps", question.local.gbps},
          {"net_alpha_us", question.net.alpha_us},
          {"net_gbps", question.net.gbps},
          {"compute_ms", assumed.compute_us / 1e3},
          {"gradient_bytes", static_cast<std::size_t>(assumed.gradient_bytes)},
          {"bucket_bytes", static_cast<std::size_t>(assumed.bucket_bytes)},
          {"samples", assumed.samples},
          {"input_bytes", static_cast<std::size_t>(assumed.input_bytes)},
          {"output_bytes", static_cast<std::size_t>(assumed.output_bytes)},
          {"activation_bytes", static_cast<std::size_t>(assumed.activation_bytes)},
          {"overlap", assumed.overlap},
          {"period", assumed.average_period},
          {"servers", assumed.servers},
          {"micro_batches", assumed.micro_batches}};
}

}  // namespace

StrategyAssumptions assumptions_for(const StrategyQuestion& question, int gpus) {
  StrategyAssumptions assumed = question.assumed;
  if (question.is_weak) return assumed;
  const double share = static_cast<double>(question.few) / gpus;
  assumed.samples *= share;
  assumed.compute_us *= share;
  return assumed;
}

void report_strategies(const StrategyQuestion& question, bool json) {
  if (question.many <= question.few)
    throw InvalidArgument("--many {} GPUs on several machines: expected more than the {} in one", question.many,
                          question.few);
  const std::vector<int> counts = machine_counts(question.many);
  if (!json)
    for (const std::string& line : describe(question)) fmt::print("# {}\n", line);
  Report report(json);
  for (const train::StrategyKind& kind : train::strategies()) {
    print_row(report, question, kind.name, {question.few, 1});
    print_row(report, question, kind.name, {question.many, 1});
    for (const int machines : counts)
      if (spans_machines(kind.name)) print_row(report, question, kind.name, {question.many, machines});
  }
  std::vector<std::string> answers;
  for (const train::StrategyKind& kind : train::strategies()) answers.push_back(answer_of(question, kind.name));
  if (json)
    fmt::print("{}\n", Json{{"model", model_of(question)}, {"answers", answers}, {"caution", kCaution}}.dump());
  else
    for (const std::string& answer : answers) fmt::print("# {}\n", answer);
}

}  // namespace lockstep::bench
