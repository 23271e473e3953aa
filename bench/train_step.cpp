// Times entire training steps (forward, backward with its all-reduces, update) of six models on generated data:
//   build/bench/train_step --model cifar10|cifar10-nolrn|mlp|resnet20|gpt|gpt2|gpt2-124m --ranks 2 [--steps 15]
//                          [--transport shm|tcp] [--json]
//   build/bench/train_step --ranks 2 --model mlp --zero
//       with a ZeroRedundancyOptimizer (lockstep/ddp/zero.h)
//   build/bench/train_step --ranks 2 --scaling
//       in turn with 2 unrelated runs of one rank: the wait for communication, and ZeRO-1
//   build/bench/train_step --backend delay --timeline
//       compared with the bound that overlap allows, on a simulated wire
//   build/bench/train_step --json --serve
//       one round for each line on stdin: libraries are tuned once, and other programs can take turns
//   build/bench/train_step --device cuda [--graph]
//       on GPUs: steps are queued one after the other; also reports the host's share of the time
//   build/bench/train_step --dtype bfloat16 --device cuda
//       layers compute in 16 bits, weights stay float32 (docs/gpu.md); the row's dtype is that of the logits
// bench/lib/train_step_models.h describes the models, their batches and optimizers. Each rank uses one thread unless
// OMP_NUM_THREADS is set; the first steps (--warm-up) are not timed.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <cxxopts.hpp>
#include <string>
#include <vector>

#include "bench/lib/bench_common.h"
#include "bench/lib/step_trainer.h"
#include "examples/lib/parse_flags.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;
using ls::bench::rounded;
using Trainer = ls::bench::StepTrainer;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 4;
constexpr int kGpuWarmUp = 10;  // cuDNN measures its engines in the first steps
constexpr int kGpuBlocks = 5;   // blocks of steps, each timed as a unit

struct Options {
  std::string model, backend, transport, optimizer;
  ls::DType dtype = ls::DType::kFloat32;  // the type in which layers compute
  int ranks = 1, steps = 15, warm_up = 0, rounds = 7;
  ls::DeviceKind device = ls::DeviceKind::kCpu;
  bool serve = false, json = false, unrelated = false, scaling = false, timeline = false, graph = false, zero = false;
};

Options parse(int argc, char** argv) {
  cxxopts::Options cli("train_step", "Times training steps");
  using cxxopts::value;
  cxxopts::OptionAdder add = cli.add_options();
  add("model", "cifar10, cifar10-nolrn, mlp, resnet20, gpt, gpt2 or gpt2-124m",
      value<std::string>()->default_value("cifar10"));
  add("ranks", "processes", value<int>()->default_value("1"));
  add("steps", "timed steps", value<int>()->default_value("15"));
  add("warm-up", "untimed steps before them (CPU 4, GPU 10)", value<int>());
  add("rounds", "of --scaling", value<int>()->default_value("7"));
  add("backend", "host, local or delay", value<std::string>()->default_value(""));
  add("transport", "auto, shm or tcp", value<std::string>()->default_value(""));
  add("device", "cpu, cuda or cuda:N", value<std::string>()->default_value("cpu"));
  add("dtype", "the type in which layers compute: float32, bfloat16, float16; weights stay float32",
      value<std::string>()->default_value("float32"));
  add("optimizer", "with --scaling, instead of the model's own: sgd, momentum, adam",
      value<std::string>()->default_value(""));
  add("json", "one JSON line");
  add("serve", "print a line when ready, then run one round for each line on stdin, so that programs can take turns");
  add("unrelated", "the ranks start together and then train alone");
  add("scaling", "compare with --unrelated, in turn");
  add("zero", "with a ZeroRedundancyOptimizer");
  add("graph", "replay each step as a graph (--device cuda)");
  add("timeline", "ready times, costs and the bound (--backend delay)");
  add("help", "this text");
  const auto given = lockstep::examples::parse_naming_flags(cli, argc, argv);
  if (given.count("help") != 0) {
    fmt::print("{}", cli.help());
    std::exit(0);
  }
  Options options{given["model"].as<std::string>(), given["backend"].as<std::string>(),
                  given["transport"].as<std::string>(), given["optimizer"].as<std::string>()};
  options.dtype = ls::autocast_type(given["dtype"].as<std::string>());
  options.ranks = given["ranks"].as<int>();
  options.steps = given["steps"].as<int>();
  options.rounds = given["rounds"].as<int>();
  options.json = given.count("json") != 0;
  options.serve = given.count("serve") != 0;
  options.unrelated = given.count("unrelated") != 0;
  options.scaling = given.count("scaling") != 0;
  options.graph = given.count("graph") != 0;
  options.zero = given.count("zero") != 0;
  options.timeline = given.count("timeline") != 0;
  options.device = ls::bench::choose_device(given["device"].as<std::string>());
  if (options.device != ls::DeviceKind::kCpu && (options.scaling || options.timeline || options.unrelated))
    throw ls::InvalidArgument("train_step: --scaling, --timeline and --unrelated need the CPU");
  if (options.zero && (options.scaling || options.unrelated || options.graph))
    throw ls::InvalidArgument("train_step: --zero excludes --scaling (which includes it), --unrelated and --graph");
  if (options.graph && options.device == ls::DeviceKind::kCpu)
    throw ls::InvalidArgument("train_step: --graph needs --device cuda");
  const int warm_up = options.device == ls::DeviceKind::kCpu ? kWarmUp : kGpuWarmUp;
  options.warm_up = given.count("warm-up") != 0 ? given["warm-up"].as<int>() : warm_up;
  if (options.steps < 1 || options.rounds < 1)
    throw ls::InvalidArgument("train_step: --steps and --rounds must be positive");
  if (options.warm_up < 0) throw ls::InvalidArgument("train_step: --warm-up must not be negative");
  if (options.serve && (options.ranks != 1 || !options.json))
    throw ls::InvalidArgument("train_step: --serve needs --json and one rank");
  if (options.timeline && options.backend != "delay")
    throw ls::InvalidArgument("train_step: --timeline needs --backend delay");
  return options;
}

double median(const std::vector<double>& values) { return ls::bench::quantile(values, 0.5); }

template <typename Member> double median_of(const std::vector<Trainer::Step>& steps, Member member) {
  std::vector<double> values;
  for (const Trainer::Step& step : steps) values.push_back(step.*member);
  return median(values);
}

std::vector<Trainer::Step> run_steps(Trainer& trainer, int warm_up, int count) {
  for (int i = 0; i < warm_up; ++i) trainer.step();
  std::vector<Trainer::Step> steps;
  for (int i = 0; i < count; ++i) steps.push_back(trainer.step());
  return steps;
}

// The maximum over all ranks.
double peak_rss_mb(ls::ProcessGroup& group) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  double mb = static_cast<double>(usage.ru_maxrss) / 1024;
  group.all_reduce(std::span(&mb, 1), ls::ReduceOp::kMax);
  return mb;
}

std::shared_ptr<ls::ProcessGroup> group_of_one() { return ls::ProcessGroup::wrap({}, ls::make_backend("local", {})); }

void print_timeline(const Trainer& trainer, const std::vector<Trainer::Step>& steps) {
  using Step = Trainer::Step;
  fmt::print("forward {:.2f} ms, backward {:.2f} ms, update {:.2f} ms; last step's buckets:\n",
             median_of(steps, &Step::forward), median_of(steps, &Step::backward), median_of(steps, &Step::update));
  for (std::size_t i = 0; i < trainer.cost_ms().size(); ++i)
    fmt::print("  bucket {}: ready {:8.2f} ms, cost {:7.2f} ms, waited {:7.2f} ms\n", i, trainer.ready_ms(i),
               trainer.cost_ms()[i], 1e3 * trainer.times()[i].waited);
  const double bound = median_of(steps, &Step::bound), total = median_of(steps, &Step::total);
  fmt::print("step {:.2f} ms, bound {:.2f} ms: {:.3f} of it\n", total, bound, total / bound);
}

const char* name_of(const Options& options) {
  return options.unrelated ? "lockstep, unrelated" : options.zero ? "lockstep, ZeRO-1" : "lockstep";
}

// Times one replica, over the job's group or, if unrelated, over a group of one rank.
void measure_round(const Options& options, ls::ProcessGroup& job, Trainer& trainer, int warm_up) {
  using Step = Trainer::Step;
  const std::vector<Step> steps = run_steps(trainer, warm_up, options.steps);
  double step_ms = median_of(steps, &Step::total);
  if (options.unrelated)
    job.all_reduce(std::span(&step_ms, 1), ls::ReduceOp::kAvg);  // the ranks of one run are equally fast
  const double peak = peak_rss_mb(job);
  if (job.rank() != 0) return;
  const Trainer::Outcome outcome = trainer.outcome();
  if (options.timeline && !options.json) print_timeline(trainer, steps);
  double least = steps.front().total;
  for (const Step& step : steps) least = std::min(least, step.total);
  nlohmann::ordered_json row = {{"peer", name_of(options)},
                                {"model", options.model},
                                {"dtype", ls::name_of(outcome.logits)},
                                {"ranks", job.world_size()},
                                {"parameters", trainer.parameters()},
                                {"step_ms", rounded(step_ms, 2)},
                                {"min_ms", rounded(least, 2)},
                                {"samples_per_s", rounded(trainer.batch() * job.world_size() / step_ms * 1e3, 1)},
                                {"peak_rss_mb", rounded(peak, 1)},
                                {"forward_ms", rounded(median_of(steps, &Step::forward), 2)},
                                {"backward_ms", rounded(median_of(steps, &Step::backward), 2)},
                                {"update_ms", rounded(median_of(steps, &Step::update), 2)}};
  row["loss"] = rounded(outcome.loss, 6);
  if (options.timeline) row["bound_ms"] = rounded(median_of(steps, &Step::bound), 2);
  ls::bench::Report(options.json).row(row);
}

void measure(const Options& options, ls::ProcessGroup& job, const std::shared_ptr<ls::ProcessGroup>& group) {
  Trainer trainer(options.model, group, {.zero = options.zero});
  job.barrier();
  ls::bench::make_rounds(
      options.serve, options.warm_up, [&] { trainer.run_step(); },
      [&](int warm_up) { measure_round(options, job, trainer, warm_up); });
}

// Times for one replica: of steps that are queued one after the other, of the host's queuing of one step on an idle
// device, and until that step's weights are computed.
struct GpuTimes {
  double step_ms, least_ms, host_ms, latency_ms;
};
GpuTimes time_on_gpu(Trainer& trainer, ls::Stream& stream, int warm_up, int count) {
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  for (int i = 0; i < warm_up; ++i) trainer.run_step();
  std::vector<double> steps, host, latency;
  for (int block = 0; block < kGpuBlocks; ++block) {
    stream.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i) trainer.run_step();
    stream.synchronize();
    steps.push_back(since(start) / count);
  }
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    trainer.run_step();
    host.push_back(since(start));
    stream.synchronize();
    latency.push_back(since(start));
  }
  return {median(steps), *std::min_element(steps.begin(), steps.end()), median(host), median(latency)};
}

void measure_round_on_gpu(const Options& options, const std::shared_ptr<ls::ProcessGroup>& job, Trainer& trainer,
                          int warm_up) {
  const ls::Device& device = job->local_device();
  const GpuTimes times = time_on_gpu(trainer, job->local_device().default_stream(), warm_up, options.steps);
  const double peak = peak_rss_mb(*job);
  if (job->rank() != 0) return;
  const Trainer::Outcome outcome = trainer.outcome();
  ls::bench::Report(options.json)
      .row({{"peer", name_of(options)},
            {"model", options.model},
            {"device", device.name()},
            {"mode", options.graph ? "graph" : "eager"},
            {"dtype", ls::name_of(outcome.logits)},
            {"ranks", job->world_size()},
            {"step_ms", rounded(times.step_ms, 4)},
            {"min_ms", rounded(times.least_ms, 4)},
            {"samples_per_s", rounded(trainer.batch() * job->world_size() / times.step_ms * 1e3, 1)},
            {"host_ms", rounded(times.host_ms, 4)},
            {"latency_ms", rounded(times.latency_ms, 4)},
            {"host_percent", rounded(100 * times.host_ms / times.step_ms, 1)},
            {"gpu_mb", rounded(static_cast<double>(device.allocator_stats().bytes_held) / (1 << 20), 1)},
            {"peak_rss_mb", rounded(peak, 1)},
            {"loss", rounded(outcome.loss, 6)}});
}

void measure_on_gpu(const Options& options, const std::shared_ptr<ls::ProcessGroup>& job) {
  Trainer trainer(options.model, job, {.device = &job->local_device(), .zero = options.zero});
  if (options.graph) trainer.use_graph();
  job->barrier();
  ls::bench::make_rounds(
      options.serve, options.warm_up, [&] { trainer.run_step(); },
      [&](int warm_up) { measure_round_on_gpu(options, job, trainer, warm_up); });
}

// Averages on the backward thread, which waits; the communication thread is compared with this.
ls::Work average_inline(ls::ProcessGroup& group, const ls::GradBucket& bucket) {
  group.all_reduce(bucket.buffer, bucket.count, bucket.dtype, ls::ReduceOp::kAvg,
                   {.purpose = {"bucket", bucket.index}});
  return {};
}

// All buckets of a step, one after the other, without computation: ms of the slowest rank.
double time_of_all_reduces(ls::ProcessGroup& job, const ls::Reducer& reducer, const std::vector<ls::Buffer>& memory,
                           int repeats) {
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    job.barrier();
    const auto start = Clock::now();
    for (std::size_t b = 0; b < memory.size(); ++b) {
      const ls::BucketLayout& bucket = reducer.buckets()[b];
      job.all_reduce(memory[b].data(), bucket.bytes / ls::size_of(bucket.dtype), bucket.dtype, ls::ReduceOp::kAvg);
    }
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  times.erase(times.begin());  // touches the memory
  double ms = median(times);
  job.all_reduce(std::span(&ms, 1), ls::ReduceOp::kMax);
  return ms;
}

std::vector<ls::Buffer> memory_of_buckets(ls::ProcessGroup& job, const ls::Reducer& reducer) {
  std::vector<ls::Buffer> memory;
  for (const ls::BucketLayout& bucket : reducer.buckets()) {
    memory.push_back(job.allocate(bucket.bytes, bucket.device));
    std::memset(memory.back().data(), 0, bucket.bytes);
  }
  return memory;
}

// Alternates blocks of steps of one run of n ranks (overlapped, not overlapped, and with a slice of the optimizer's
// state on each rank) with blocks of n unrelated runs, all in the same processes, so that disturbances affect all
// alike. A step's exposed communication is its extra time compared with an unrelated step; all_reduce_ms is the time of
// its all-reduces alone.
void measure_scaling(const Options& options, const std::shared_ptr<ls::ProcessGroup>& job) {
  struct Variant {
    const char* name;
    Trainer trainer;
    // Per round; `speed` is relative to the first variant's.
    std::vector<double> block_ms = {}, speed = {}, exposed = {}, to_lockstep = {};
  };
  const std::string& optimizer = options.optimizer;
  std::array<Variant, 4> variants = {
      Variant{"unrelated", Trainer(options.model, group_of_one(), {.optimizer = optimizer})},
      Variant{"lockstep", Trainer(options.model, job, {.optimizer = optimizer})},
      Variant{"lockstep, inline", Trainer(options.model, job, {.hook = average_inline, .optimizer = optimizer})},
      Variant{"lockstep, ZeRO-1", Trainer(options.model, job, {.optimizer = optimizer, .zero = true})}};
  const ls::Reducer& reducer = variants[1].trainer.reducer();
  std::vector<ls::Buffer> memory;
  std::vector<double> alone;
  for (int round = 0; round < options.rounds; ++round) {
    for (Variant& variant : variants) {
      job->barrier();
      double ms =
          median_of(run_steps(variant.trainer, round == 0 ? options.warm_up : 1, options.steps), &Trainer::Step::total);
      job->all_reduce(std::span(&ms, 1), ls::ReduceOp::kAvg);
      variant.block_ms.push_back(ms);
      variant.speed.push_back(variants.front().block_ms.back() / ms);
      variant.exposed.push_back(ms - variants.front().block_ms.back());
      variant.to_lockstep.push_back(ms / (&variant == variants.data() ? ms : variants[1].block_ms.back()));
    }
    if (memory.empty()) memory = memory_of_buckets(*job, reducer);  // of the buckets in their final form
    alone.push_back(time_of_all_reduces(*job, reducer, memory, options.steps));
  }
  if (job->rank() != 0) return;
  ls::bench::Report report(options.json);
  for (const Variant& variant : variants)
    report.row({{"peer", variant.name},
                {"model", options.model},
                {"dtype", ls::name_of(options.dtype)},
                {"ranks", job->world_size()},
                {"step_ms", rounded(median(variant.block_ms), 2)},
                {"speed_kept", rounded(median(variant.speed), 3)},
                {"exposed_ms", rounded(median(variant.exposed), 2)},
                {"all_reduce_ms", rounded(median(alone), 2)},
                {"of_lockstep", rounded(median(variant.to_lockstep), 3)}});
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const ls::AutoCast autocast(options.dtype);
  const auto job = ls::init_process_group({.backend = options.backend, .transport = options.transport});
  if (options.device != ls::DeviceKind::kCpu)
    measure_on_gpu(options, job);
  else if (options.scaling)
    measure_scaling(options, job);
  else
    measure(options, *job, options.unrelated ? group_of_one() : job);
  return 0;
}

int start(int argc, char** argv) {
  setenv("OMP_NUM_THREADS", "1", 0);
  return ls::launch::spawn(parse(argc, argv).ranks, argc, argv, run);
}

}  // namespace

int main(int argc, char** argv) { return ls::run_main("train_step", start, argc, argv); }
