// Times every operator of core/operators.def on the rows that kernels/cases has for it: those of the tutorial
// network's training step, and operators limited by memory on arrays that are too large for any cache:
//   build/bench/operators [--device cuda] [--dtype bfloat16] [--json] [--rounds 15] [--only conv2d,relu]
//                         [--batch 128] [--elements 64M] [--product 8192] [--cpu-time]
// A row has the median time of its rounds, the rates of computation and memory access (bytes that must move once), and
// its share of the limit: the time that it would take at the device's rates (the larger of both times), divided by the
// time that it took. The first rows measure those rates: a copy in the device's memory, and the large linear layer,
// forward or backward, whichever is the fastest. Memory that fits into a cache may exceed 100 %. On a GPU a round
// repeats a call until 2 ms have passed; small operators run as a graph, because the host would need longer to queue
// them than they take. With --cpu-time a row has the least CPU time of its rounds, for a machine that other programs
// use, and OMP_NUM_THREADS=1.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <cxxopts.hpp>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/lib/bench_common.h"
#include "examples/lib/parse_flags.h"
#include "kernels/cases/cases.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace {

using lockstep::DType;
using lockstep::testing::Cases;
using lockstep::testing::Index;
using lockstep::testing::Row;

constexpr double kRoundSeconds = 0.002;
constexpr Index kMostCalls = 1000;

// The arrays of one row.
class PlainBench : public lockstep::testing::Bench {
 public:
  PlainBench(lockstep::Device& device, DType type) : Bench(device, device.kernels(), type) {}

 protected:
  std::byte* add(const Bytes& bytes, std::size_t, lockstep::testing::Place, Read) override {
    arrays_.push_back(device_.allocate(bytes.size()));
    device_.copy(arrays_.back().data(), bytes.data(), bytes.size(), stream());
    stream().synchronize();
    return arrays_.back().data();
  }

 private:
  std::vector<lockstep::Buffer> arrays_;
};

class Clock {
 public:
  Clock(lockstep::Device& device, int rounds, bool cpu_time) : device_(device), rounds_(rounds), cpu_time_(cpu_time) {}

  double median_seconds(const std::function<void()>& call) const {
    constexpr double kSmall = 50e-6;
    // Libraries choose their algorithms in the first call; cuDNN's engines are measured in the third one.
    constexpr Index kCallsThatChoose = 4;
    seconds_of(call, device_.kind() == lockstep::DeviceKind::kCpu ? 1 : kCallsThatChoose);
    if (device_.kind() == lockstep::DeviceKind::kCpu) return median_seconds(call, 1);
    const double once = seconds_of(call, 10);
    const Index calls = std::clamp<Index>(static_cast<Index>(kRoundSeconds / once), 1, kMostCalls);
    return once < kSmall ? seconds_in_graph(call, calls) : median_seconds(call, calls);
  }

 private:
  double now() const {
    if (!cpu_time_) return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double seconds_of(const std::function<void()>& call, Index calls) const {
    const double start = now();
    for (Index i = 0; i < calls; ++i) call();
    stream_.synchronize();
    return (now() - start) / static_cast<double>(calls);
  }

  // Runs the calls as a graph, if queuing a call takes the host long compared with the device's time.
  double seconds_in_graph(const std::function<void()>& call, Index calls) const {
    constexpr Index kMostInGraph = 200;
    const Index in_graph = std::min(calls, kMostInGraph), launches = (calls + in_graph - 1) / in_graph;
    device_.begin_capture(stream_);
    for (Index i = 0; i < in_graph; ++i) call();
    const auto graph = device_.end_capture(stream_);
    return median_seconds([&] { graph->launch(stream_); }, launches) / static_cast<double>(in_graph);
  }

  double median_seconds(const std::function<void()>& call, Index calls) const {
    seconds_of(call, calls);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) seconds.push_back(seconds_of(call, calls));
    return lockstep::bench::quantile(seconds, cpu_time_ ? 0 : 0.5);
  }

  lockstep::Device& device_;
  int rounds_;
  bool cpu_time_;
  lockstep::Stream& stream_ = device_.default_stream();
};

// One row of the list; `kernel` is its operator.
struct Timed {
  std::string kernel;
  Cases::TimedRow what;
};

class Table {
 public:
  Table(lockstep::Device& device, DType type, bool json, const Clock& clock)
      : device_(device), type_(type), json_(json), clock_(clock) {}

  // The first row: the limit of memory.
  void copy(Index elements) {
    if (!json_)
      fmt::print("{:<36} {:>9} {:>9} {:>9} {:>10} {:>8}\n", "operator on " + device_.name(), "ms", "GFLOP/s", "GB/s",
                 "% of limit", "limit");
    PlainBench bench(device_, DType::kFloat32);
    const auto from = bench.in({elements}, lockstep::testing::uniform(elements, 1));
    const auto to = bench.out({elements}, lockstep::testing::Floats(static_cast<std::size_t>(elements)));
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
    const double seconds = clock_.median_seconds([&] { device_.copy(to.data, from.data, bytes, bench.stream()); });
    bytes_per_second_ = 2 * static_cast<double>(bytes) / seconds;
    const auto millions = static_cast<double>(elements) / (1 << 20);
    print("", {.name = fmt::format("device copy {:.1f} M", millions), .bytes = 2 * static_cast<double>(bytes)},
          seconds);
  }

  // The next rows: the fastest of them is the limit of computation.
  void limits(const std::vector<Timed>& rows) {
    std::vector<double> seconds;
    for (const Timed& timed : rows) {
      seconds.push_back(seconds_of(timed));
      flops_per_second_ = std::max(flops_per_second_, timed.what.row.flops / seconds.back());
    }
    for (std::size_t i = 0; i < rows.size(); ++i) print(rows[i].kernel, rows[i].what.row, seconds[i]);
  }

  void time(const Timed& timed) { print(timed.kernel, timed.what.row, seconds_of(timed)); }

 private:
  double seconds_of(const Timed& timed) const {
    PlainBench bench(device_, type_);
    return clock_.median_seconds(timed.what.work(bench));
  }

  void print(const std::string& kernel, const Row& row, double seconds) {
    const double memory = row.bytes / bytes_per_second_,
                 compute = flops_per_second_ > 0 ? row.flops / flops_per_second_ : 0;
    const double share = 100 * std::max(memory, compute) / seconds;
    const char* const limit = share == 0 ? "" : memory > compute ? "memory" : "compute";
    const std::string name =
        row.name + (kernel.empty() || type_ == DType::kFloat32 ? "" : ", " + std::string(name_of(type_)));
    if (json_) {
      fmt::print("{}\n", nlohmann::ordered_json{{"operator", name},
                                                {"kernel", kernel},
                                                {"dtype", name_of(type_)},
                                                {"device", device_.name()},
                                                {"ms", seconds * 1e3},
                                                {"gflops", row.flops / seconds * 1e-9},
                                                {"gbps", row.bytes / seconds * 1e-9},
                                                {"share_percent", lockstep::bench::rounded(share, 1)},
                                                {"limit", limit}}
                             .dump());
    } else {
      const auto rate = [](double value) { return value == 0 ? std::string() : fmt::format("{:.1f}", value); };
      fmt::print("{:<36} {:>9.4f} {:>9} {:>9} {:>10} {:>8}\n", name, seconds * 1e3, rate(row.flops / seconds * 1e-9),
                 rate(row.bytes / seconds * 1e-9), rate(share), limit);
    }
    std::fflush(stdout);
  }

  lockstep::Device& device_;
  DType type_;
  bool json_;
  Clock clock_;
  double flops_per_second_ = 0, bytes_per_second_ = 0;  // the limits; 0: not measured yet
};

// All rows of the list.
std::vector<Timed> all_rows(DType type, const lockstep::testing::Sizes& sizes) {
  std::vector<Timed> rows;
  for (const auto& each : lockstep::testing::kOperators) {
    Cases cases(type, sizes);
    each.add(cases);
    for (const Cases::TimedRow& row : cases.rows()) rows.push_back({each.name, row});
  }
  return rows;
}

// True if a part of the operator's or the row's name is among `parts`, or if these are empty.
bool is_wanted(const Timed& timed, const std::vector<std::string>& parts) {
  const auto is_part = [&](const std::string& part) {
    return timed.kernel.find(part) != std::string::npos || timed.what.row.name.find(part) != std::string::npos;
  };
  return parts.empty() || std::any_of(parts.begin(), parts.end(), is_part);
}

// Always measures the limits first.
void measure(Table& table, const std::vector<Timed>& rows, Index elements, const std::vector<std::string>& only) {
  const auto wanted = [&](const Timed& timed) { return is_wanted(timed, only); };
  if (std::none_of(rows.begin(), rows.end(), wanted)) {
    std::string parts;
    for (const std::string& part : only) parts += " " + part;
    throw lockstep::InvalidArgument("operators: --only{}: no operator and no row has it in its name", parts);
  }
  table.copy(elements);
  std::vector<Timed> limits;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(limits),
               [](const Timed& timed) { return timed.what.row.is_limit; });
  table.limits(limits);
  for (const Timed& timed : rows)
    if (!timed.what.row.is_limit && wanted(timed)) table.time(timed);
}

DType type_named(const std::string& name) {
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    if (name_of(type) == name) return type;
  throw lockstep::InvalidArgument("operators: --dtype {}: expected float32, float16 or bfloat16", name);
}

int run(int argc, char** argv) {
  cxxopts::Options options("operators", "Times the operators of the kernel table");
  options.add_options()("json", "JSON lines")("batch", "images a step", cxxopts::value<int>()->default_value("128"))(
      "rounds", "timed rounds of each operator", cxxopts::value<int>()->default_value("15"))(
      "cpu-time", "report the least CPU time of each operator's rounds, not the median time")(
      "device", "cpu, cuda or cuda:N", cxxopts::value<std::string>()->default_value("cpu"))(
      "dtype", "type of activations: float32, float16 or bfloat16",
      cxxopts::value<std::string>()->default_value("float32"))(
      "elements", "elements of the large arrays, at least 64; K, M, G are binary (default: 4M, on a GPU 64M)",
      cxxopts::value<std::string>())("product", "side of the large linear layer (default: 1024, on a GPU 8192)",
                                     cxxopts::value<int>())(
      "only",
      "measure only operators or rows whose names contain one of these parts, separated by commas (after the limits)",
      cxxopts::value<std::vector<std::string>>())("help", "this text");
  const auto flags = lockstep::examples::parse_naming_flags(options, argc, argv);
  if (flags.count("help") != 0) {
    fmt::print("{}\n", options.help());
    return 0;
  }
  const int batch = flags["batch"].as<int>(), rounds = flags["rounds"].as<int>();
  if (batch < 1 || rounds < 1) throw lockstep::InvalidArgument("operators: --batch and --rounds must be at least 1");
  const DType type = type_named(flags["dtype"].as<std::string>());
  const bool on_gpu = lockstep::bench::choose_device(flags["device"].as<std::string>()) != lockstep::DeviceKind::kCpu;
  const std::string size = flags.count("elements") != 0 ? flags["elements"].as<std::string>() : on_gpu ? "64M" : "4M";
  const auto elements = static_cast<Index>(lockstep::bench::parse_bytes("--elements", size));
  const Index side = flags.count("product") != 0 ? flags["product"].as<int>() : on_gpu ? 8192 : 1024;
  if (elements < 64 || side < 1)
    throw lockstep::InvalidArgument("operators: --elements must be at least 64, --product at least 1");
  const auto only =
      flags.count("only") != 0 ? flags["only"].as<std::vector<std::string>>() : std::vector<std::string>();
  lockstep::Device& device = lockstep::local_device(0);
  Table table(device, type, flags.count("json") != 0, Clock(device, rounds, flags.count("cpu-time") != 0));
  measure(table, all_rows(type, {batch, elements, side}), elements, only);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("operators", run, argc, argv); }
