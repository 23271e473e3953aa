// Times each operator of the tutorial network's training step (and the update of the 16.8 M parameter perceptron):
//   build/bench/kernels [--json] [--batch 128] [--rounds 15]
// A row is the median of its rounds and the rate at which it computes or touches memory (bytes that must move once).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cxxopts.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace {

using lockstep::Conv2dShape;
using Index = std::int64_t;

struct Row {
  std::string name;
  double ms, gflops, gbps;  // a rate of 0 is not shown
};

// Random floats that last as long as the program.
float* data(Index count) {
  static std::vector<lockstep::Buffer> buffers;
  static std::mt19937 random(1);
  buffers.push_back(lockstep::cpu_device().allocate(count * sizeof(float)));
  auto* values = reinterpret_cast<float*>(buffers.back().data());
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (Index i = 0; i < count; ++i) values[i] = uniform(random);
  return values;
}

class Bench {
 public:
  Bench(Index batch, int rounds) : batch_(batch), rounds_(rounds) {}

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
    time(name + " forward + relu", flops, 0, [=, this] { kernels_.linear(shape, x, weight, bias, true, y, stream_); });
    time(name + " backward data", flops, 0, [=, this] { kernels_.linear_backward_data(shape, y_grad, weight, x, false, stream_); });
    time(name + " backward weights", flops, 0,
         [=, this] { kernels_.linear_backward_weights(shape, x, y_grad, weight, bias, false, false, stream_); });
  }

  void relu_backward(const std::string& name, Index count) {
    float *y = data(count), *grad = data(count);
    time(name, 0, 12.0 * count, [=, this] { kernels_.relu_backward(y, grad, count, stream_); });
  }

  void loss() {
    const auto labels = std::vector<Index>(batch_, 3);
    float *logits = data(batch_ * 10), *probabilities = data(batch_ * 10), *value = data(1), *one = data(1);
    time("cross entropy", 0, 0, [=, this] {
      kernels_.softmax_cross_entropy(logits, labels.data(), batch_, 10, value, probabilities, stream_);
      kernels_.softmax_cross_entropy_backward(probabilities, labels.data(), batch_, 10, one, logits, false, stream_);
    });
  }

  void update(const std::string& name, const std::vector<Index>& counts, float momentum) {
    std::vector<lockstep::SgdTensor> tensors;
    double bytes = 0;
    for (const Index count : counts) {
      tensors.push_back({data(count), data(count), momentum == 0 ? nullptr : data(count), count});
      bytes += count * (momentum == 0 ? 12.0 : 20.0);
    }
    time(name, 0, bytes, [=, this] { kernels_.sgd_step(tensors, {1e-6F, momentum, 0, false}, stream_); });
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void time(const std::string& name, double flops, double bytes, const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int round = -2; round < rounds_; ++round) {
      const auto start = std::chrono::steady_clock::now();
      call();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (round >= 0) seconds.push_back(taken.count());
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    rows_.push_back({name, median * 1e3, flops / median * 1e-9, bytes / median * 1e-9});
  }

  Index batch_;
  int rounds_;
  std::vector<Row> rows_;
  const lockstep::KernelTable& kernels_ = lockstep::cpu_device().kernels();
  lockstep::Stream& stream_ = lockstep::cpu_device().default_stream();
};

void print(const std::vector<Row>& rows, bool json) {
  if (!json) fmt::print("{:<28} {:>9} {:>9} {:>9}\n", "operator", "ms", "GFLOP/s", "GB/s");
  for (const Row& row : rows) {
    if (json) {
      fmt::print("{}\n", nlohmann::json{{"operator", row.name}, {"ms", row.ms}, {"gflops", row.gflops}, {"gbps", row.gbps}}.dump());
      continue;
    }
    const auto rate = [](double value) { return value == 0 ? std::string() : fmt::format("{:.1f}", value); };
    fmt::print("{:<28} {:>9.3f} {:>9} {:>9}\n", row.name, row.ms, rate(row.gflops), rate(row.gbps));
  }
}

int run(int argc, char** argv) {
  cxxopts::Options options("kernels", "Times the CPU operators of a training step");
  options.add_options()("json", "JSON lines")("batch", "images a step", cxxopts::value<int>()->default_value("128"))(
      "rounds", "timed calls of each operator", cxxopts::value<int>()->default_value("15"))("help", "this text");
  const auto flags = options.parse(argc, argv);
  if (flags.count("help") != 0) {
    fmt::print("{}\n", options.help());
    return 0;
  }
  const int batch = flags["batch"].as<int>(), rounds = flags["rounds"].as<int>();
  if (batch < 1 || rounds < 1) throw lockstep::InvalidArgument("kernels: --batch and --rounds must be at least 1");
  Bench bench(batch, rounds);
  bench.convolution("conv1", 24, 3, false);
  bench.convolution("conv2", 12, 64, true);
  bench.pooling("pool1", 24);
  bench.pooling("pool2", 12);
  bench.normalisation("lrn", 12);
  bench.linear("local3", batch, 2304, 384);
  bench.linear("local4", batch, 384, 192);
  bench.linear("logits", batch, 192, 10);
  bench.linear("mlp layer, batch 64", 64, 2048, 2048);
  bench.relu_backward("relu1 backward", batch * Index{24 * 24 * 64});
  bench.relu_backward("relu2 backward", batch * Index{12 * 12 * 64});
  bench.loss();
  bench.update("sgd tutorial network", {4800, 64, 102400, 64, 884736, 384, 73728, 192, 1920, 10}, 0);
  bench.update("sgd momentum 16.8 M", {4194304, 2048, 4194304, 2048, 4194304, 2048, 4194304, 2048, 20480, 10}, 0.9F);
  print(bench.rows(), flags.count("json") != 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return lockstep::run_main("kernels", run, argc, argv); }
