// Times each operator of the tutorial network's training step (and the update of the 16.8 M parameter perceptron), and those that memory
// bounds on arrays too large for any cache:
//   build/bench/kernels [--device cuda] [--json] [--batch 128] [--rounds 15] [--elements 64M] [--product 8192] [--only linear]
// A row is the median of its rounds, the rate at which it computes or touches memory (bytes that must move once), and its share of the
// limit: of the large linear layer's rate, or of the rate at which the device copies memory. Both limits are rows themselves, the first
// ones; memory that fits into a cache may have more than 100 %. On a GPU a round is a call repeated until 2 ms have passed: small operators
// as a graph, since the host would need longer to queue them than they take.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cxxopts.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "bench/lib/bench_common.h"
#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace {

using lockstep::Conv2dShape;
using Index = std::int64_t;

struct Row {
  std::string name;
  double ms, gflops, gbps;  // a rate of 0 is not shown
};

constexpr double kRoundSeconds = 0.002;
constexpr Index kMostCalls = 1000;

class Bench {
 public:
  Bench(lockstep::Device& device, Index batch, int rounds, bool json) : device_(device), batch_(batch), rounds_(rounds), json_(json) {
    if (!json_) fmt::print("{:<36} {:>9} {:>9} {:>9} {:>10}\n", "operator on " + device_.name(), "ms", "GFLOP/s", "GB/s", "% of limit");
  }

  void convolution(const std::string& name, Index size, Index channels, bool data_grad) {
    const Conv2dShape shape{batch_, size, size, channels, size, size, 64, 5, 5, 1, 1, 2, 2, 2, 2};
    const Index weights = 64 * 25 * channels;
    const double flops = 2.0 * batch_ * size * size * weights;
    float *x = data(batch_ * size * size * channels), *y = data(batch_ * size * size * 64);
    float *weight = data(weights), *bias = data(64), *grad = data(batch_ * size * size * channels);
    time(name + " forward + relu", flops, 0, [=, this] { kernels_.conv2d(shape, x, weight, bias, true, y, stream_); });
    if (data_grad)
      time(name + " backward data", flops, 0, [=, this] { kernels_.conv2d_backward_data(shape, y, weight, grad, false, stream_); });
    time(name + " backward weights", flops, 0,
         [=, this] { kernels_.conv2d_backward_weights(shape, x, y, weight, bias, false, false, stream_); });
  }

  void pooling(const std::string& name, Index size) {
    const lockstep::Pool2dShape shape{batch_, size, size, 64, size / 2, size / 2, 3, 3, 2, 2, 1, 1, 1, 1};
    const Index in = batch_ * size * size * 64, out = in / 4;
    float *x = data(in), *y = data(out);
    auto* argmax = reinterpret_cast<std::uint16_t*>(data((out + 1) / 2));
    time(name + " forward", 0, 4.0 * in + 6.0 * out, [=, this] { kernels_.max_pool2d(shape, x, y, argmax, stream_); });
    time(name + " backward", 0, 4.0 * in + 6.0 * out, [=, this] { kernels_.max_pool2d_backward(shape, y, argmax, x, false, stream_); });
  }

  void normalisation(const std::string& name, Index size) {
    const lockstep::LrnParams params{batch_ * size * size, 64, 4, 1.0F, 0.001F / 9, 0.75F};
    const Index count = params.rows * 64;
    float *x = data(count), *y = data(count), *scale = data(count), *y_grad = data(count), *x_grad = data(count);
    time(name + " forward", 0, 12.0 * count, [=, this] { kernels_.lrn(params, x, y, scale, stream_); });
    time(name + " backward", 0, 20.0 * count, [=, this] { kernels_.lrn_backward(params, x, y, scale, y_grad, x_grad, false, stream_); });
  }

  void linear(const std::string& name, Index batch, Index in, Index out) {
    const lockstep::LinearShape shape{batch, in, out};
    const double flops = 2.0 * batch * in * out;
    float *x = data(batch * in), *weight = data(in * out), *bias = data(out), *y = data(batch * out), *y_grad = data(batch * out);
    time(name + " forward", flops, 0, [=, this] { kernels_.linear(shape, x, weight, bias, false, y, stream_); });
    time(name + " backward data", flops, 0, [=, this] { kernels_.linear_backward_data(shape, y_grad, weight, x, false, stream_); });
    time(name + " backward weights", flops, 0,
         [=, this] { kernels_.linear_backward_weights(shape, x, y_grad, weight, nullptr, false, false, stream_); });
    time(name + " backward bias", 0, 4.0 * batch * out, [=, this] { kernels_.bias_backward(y_grad, bias, batch, out, false, stream_); });
  }

  void relu_backward(const std::string& name, Index count) {
    float *y = data(count), *grad = data(count);
    time(name, 0, 12.0 * count, [=, this] { kernels_.relu_backward(y, grad, count, stream_); });
  }

  void loss() {
    auto* labels = reinterpret_cast<Index*>(data(2 * batch_));
    const std::vector<Index> threes(batch_, 3);
    upload(labels, threes.data(), threes.size() * sizeof(Index));
    float *logits = data(batch_ * 10), *probabilities = data(batch_ * 10), *value = data(1), *one = data(1);
    time("cross entropy", 0, 0, [=, this] {
      kernels_.softmax_cross_entropy(logits, labels, batch_, 10, value, probabilities, stream_);
      kernels_.softmax_cross_entropy_backward(probabilities, labels, batch_, 10, one, logits, false, stream_);
    });
  }

  void update(const std::string& name, const std::vector<Index>& counts, float momentum) {
    std::vector<lockstep::SgdTensor> tensors;
    double bytes = 0;
    for (const Index count : counts) {
      tensors.push_back({data(count), data(count), momentum == 0 ? nullptr : data(count), count});
      bytes += count * (momentum == 0 ? 12.0 : 20.0);
    }
    const float* const lr = data(1);
    time(name, 0, bytes, [=, this] { kernels_.sgd_step(tensors, {lr, momentum, 0, false}, stream_); });
  }

  // The limit of what memory bounds.
  void copy(Index count) {
    float *a = data(count), *b = data(count);
    const double bytes = 8.0 * static_cast<double>(count);
    const auto call = [=, this] { device_.copy(b, a, count * sizeof(float), stream_); };
    const double median = median_seconds(call);
    copy_gbps_ = bytes / median * 1e-9;
    print({"device copy" + in_millions(count), median * 1e3, 0, copy_gbps_});
  }

  void memory(Index count) {
    float *a = data(count), *b = data(count), *c = data(count);
    const std::string size = in_millions(count);
    const auto bytes = static_cast<double>(count) * sizeof(float);
    time("fill" + size, 0, bytes, [=, this] { kernels_.fill(a, 0.5F, count, stream_); });
    time("add" + size, 0, 3 * bytes, [=, this] { kernels_.add(a, b, c, count, stream_); });
    time("accumulate" + size, 0, 3 * bytes, [=, this] { kernels_.accumulate(c, a, count, stream_); });
    time("scale" + size, 0, 2 * bytes, [=, this] { kernels_.scale(a, 0.5F, b, count, false, stream_); });
    time("relu" + size, 0, 2 * bytes, [=, this] { kernels_.relu(a, b, count, stream_); });
    time("relu backward" + size, 0, 3 * bytes, [=, this] { kernels_.relu_backward(a, b, count, stream_); });
    time("bias" + size, 0, 2 * bytes, [=, this] { kernels_.bias(b, a, count / 64, 64, stream_); });
    const float* const lr = data(1);
    const auto step = [=, this](float* momentum) {
      const lockstep::SgdTensor tensor{a, b, momentum, count};
      kernels_.sgd_step({&tensor, 1}, {lr, momentum == nullptr ? 0 : 0.9F, 0, false}, stream_);
    };
    time("sgd" + size, 0, 3 * bytes, [=] { step(nullptr); });
    time("sgd momentum" + size, 0, 5 * bytes, [=] { step(c); });
  }

 private:
  static std::string in_millions(Index count) { return fmt::format(" {:.1f} M", static_cast<double>(count) / (1 << 20)); }

  void upload(void* to, const void* from, std::size_t bytes) {
    device_.copy(to, from, bytes, stream_);
    stream_.synchronize();
  }

  // Random floats that last as long as the bench.
  float* data(Index count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
    std::vector<float> values(static_cast<std::size_t>(count));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : values) value = uniform(random_);
    buffers_.push_back(device_.allocate(bytes));
    upload(buffers_.back().data(), values.data(), bytes);
    return reinterpret_cast<float*>(buffers_.back().data());
  }

  double seconds_of(const std::function<void()>& call, Index calls) {
    const auto start = std::chrono::steady_clock::now();
    for (Index i = 0; i < calls; ++i) call();
    stream_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(calls);
  }

  // As a graph, of a call that the host takes long to queue beside what the device needs for it.
  double seconds_in_graph(const std::function<void()>& call, Index calls) {
    constexpr Index kMostInGraph = 200;
    const Index in_graph = std::min(calls, kMostInGraph), launches = (calls + in_graph - 1) / in_graph;
    device_.begin_capture(stream_);
    for (Index i = 0; i < in_graph; ++i) call();
    const auto graph = device_.end_capture(stream_);
    seconds_of([&] { graph->launch(stream_); }, 1);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) seconds.push_back(seconds_of([&] { graph->launch(stream_); }, launches));
    return lockstep::bench::quantile(seconds, 0.5) / static_cast<double>(in_graph);
  }

  double median_seconds(const std::function<void()>& call) {
    constexpr double kSmall = 50e-6;
    seconds_of(call, 1);  // libraries choose their ways
    if (device_.kind() == lockstep::DeviceKind::kCpu) return median_seconds(call, 1);
    const double once = seconds_of(call, 10);
    const Index calls = std::clamp<Index>(static_cast<Index>(kRoundSeconds / once), 1, kMostCalls);
    return once < kSmall ? seconds_in_graph(call, calls) : median_seconds(call, calls);
  }
  double median_seconds(const std::function<void()>& call, Index calls) {
    seconds_of(call, calls);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) seconds.push_back(seconds_of(call, calls));
    return lockstep::bench::quantile(seconds, 0.5);
  }

  void time(const std::string& name, double flops, double bytes, const std::function<void()>& call) {
    const double median = median_seconds(call);
    print({name, median * 1e3, flops / median * 1e-9, bytes / median * 1e-9});
  }

  // The first row that computes is the limit of those.
  void print(const Row& row) {
    if (best_gflops_ == 0) best_gflops_ = row.gflops;
    const double share = row.gflops > 0 ? 100 * row.gflops / best_gflops_ : copy_gbps_ > 0 ? 100 * row.gbps / copy_gbps_ : 0;
    if (json_) {
      fmt::print("{}\n", nlohmann::ordered_json{{"operator", row.name},
                                                {"device", device_.name()},
                                                {"ms", row.ms},
                                                {"gflops", row.gflops},
                                                {"gbps", row.gbps},
                                                {"share_percent", lockstep::bench::rounded(share, 1)}}
                             .dump());
    } else {
      const auto rate = [](double value) { return value == 0 ? std::string() : fmt::format("{:.1f}", value); };
      fmt::print("{:<36} {:>9.4f} {:>9} {:>9} {:>10}\n", row.name, row.ms, rate(row.gflops), rate(row.gbps), rate(share));
    }
    std::fflush(stdout);
  }

  lockstep::Device& device_;
  Index batch_;
  int rounds_;
  bool json_;
  double best_gflops_ = 0, copy_gbps_ = 0;  // the limits; 0: not measured
  std::vector<lockstep::Buffer> buffers_;
  std::mt19937 random_{1};
  const lockstep::KernelTable& kernels_ = device_.kernels();
  lockstep::Stream& stream_ = device_.default_stream();
};

// The large one first: it is the limit of computation.
void measure_linear(Bench& bench, Index batch, Index side) {
  bench.linear(fmt::format("linear {}", side), side, side, side);
  bench.linear("local3", batch, 2304, 384);
  bench.linear("local4", batch, 384, 192);
  bench.linear("logits", batch, 192, 10);
  bench.linear("mlp layer, batch 64", 64, 2048, 2048);
}

void measure_all(Bench& bench, Index batch, Index side, Index elements) {
  bench.copy(elements);
  measure_linear(bench, batch, side);
  bench.convolution("conv1", 24, 3, false);
  bench.convolution("conv2", 12, 64, true);
  bench.pooling("pool1", 24);
  bench.pooling("pool2", 12);
  bench.normalisation("lrn", 12);
  bench.relu_backward("relu1 backward", batch * Index{24 * 24 * 64});
  bench.relu_backward("relu2 backward", batch * Index{12 * 12 * 64});
  bench.loss();
  bench.update("sgd tutorial network", {4800, 64, 102400, 64, 884736, 384, 73728, 192, 1920, 10}, 0);
  bench.update("sgd momentum 16.8 M", {4194304, 2048, 4194304, 2048, 4194304, 2048, 4194304, 2048, 20480, 10}, 0.9F);
  bench.memory(elements);
}

int run(int argc, char** argv) {
  cxxopts::Options options("kernels", "Times the operators of a training step");
  options.add_options()("json", "JSON lines")("batch", "images a step", cxxopts::value<int>()->default_value("128"))(
      "rounds", "timed rounds of each operator", cxxopts::value<int>()->default_value("15"))(
      "device", "cpu, cuda or cuda:N", cxxopts::value<std::string>()->default_value("cpu"))(
      "elements", "of the large arrays, at least 64; K, M, G are binary (default: 4M, on a GPU 64M)", cxxopts::value<std::string>())(
      "product", "side of the large linear layer (default: 1024, on a GPU 8192)", cxxopts::value<int>())(
      "only", "linear: these alone", cxxopts::value<std::string>()->default_value(""))("help", "this text");
  const auto flags = options.parse(argc, argv);
  if (flags.count("help") != 0) {
    fmt::print("{}\n", options.help());
    return 0;
  }
  const int batch = flags["batch"].as<int>(), rounds = flags["rounds"].as<int>();
  if (batch < 1 || rounds < 1) throw lockstep::InvalidArgument("kernels: --batch and --rounds must be at least 1");
  const bool on_gpu = lockstep::bench::choose_device(flags["device"].as<std::string>()) != lockstep::DeviceKind::kCpu;
  const std::string size = flags.count("elements") != 0 ? flags["elements"].as<std::string>() : on_gpu ? "64M" : "4M";
  const auto elements = static_cast<Index>(lockstep::bench::parse_bytes("--elements", size));
  const Index side = flags.count("product") != 0 ? flags["product"].as<int>() : on_gpu ? 8192 : 1024;
  if (elements < 64 || side < 1) throw lockstep::InvalidArgument("kernels: --elements must be at least 64, --product at least 1");
  const std::string only = flags["only"].as<std::string>();
  Bench bench(lockstep::local_device(0), batch, rounds, flags.count("json") != 0);
  if (only == "linear")
    measure_linear(bench, batch, side);
  else if (only.empty())
    measure_all(bench, batch, side, elements);
  else
    throw lockstep::InvalidArgument("kernels: --only {}: there is linear", only);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("kernels", run, argc, argv); }
