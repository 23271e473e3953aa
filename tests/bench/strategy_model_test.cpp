// The model of strategies against values computed by hand, and against the bytes that the strategies count.
// 1 GB/s moves 1000 bytes in 1 us.
#include "bench/lib/strategy_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bench/lib/strategy_report.h"
#include "lockstep/core/error.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/strategy_training.h"

namespace lockstep::bench {
namespace {

using ::testing::HasSubstr;

constexpr Link kInside{1, 10}, kBetween{20, 1};

// One bucket, so that nothing hides behind backward.
StrategyAssumptions one_bucket() {
  return {.compute_us = 1000,
          .gradient_bytes = 80'000,
          .bucket_bytes = 80'000,
          .samples = 4,
          .input_bytes = 1000,
          .output_bytes = 100,
          .activation_bytes = 500,
          .average_period = 5,
          .micro_batches = 6};
}

double us(const std::string& strategy, const GpuJob& job, const StrategyAssumptions& assumed = one_bucket()) {
  return strategy_step_us(strategy, assumed, kInside, kBetween, job);
}

TEST(StrategyModel, EachStrategyHasAFormulaAndMoreThanItsCompute) {
  for (const train::StrategyKind& kind : train::strategies()) {
    EXPECT_GT(us(kind.name, {8, 1}), 1000) << kind.name;
    EXPECT_GT(busiest_bytes(kind.name, one_bucket(), 8, 1), 0) << kind.name;
    if (spans_machines(kind.name))
      EXPECT_GE(us(kind.name, {8, 2}), us(kind.name, {8, 1})) << kind.name << ": this network is slower";
    else
      EXPECT_THAT(message_of([&] { us(kind.name, {8, 2}); }), HasSubstr("one process drives all GPUs")) << kind.name;
  }
  EXPECT_THAT(message_of([] { us("horovod", {8, 1}); }), HasSubstr("unknown strategy 'horovod'"));
}

TEST(StrategyModel, AllReducesByHand) {
  // Inside: 2 (log2(8) 1 us + 7/8 80,000 / 10,000 us). Between two machines of 4: the same of 4, and 2 (20 + 40).
  const double inside = 2 * (3 + 7), two = 2 * (2 + 6) + 2 * (20 + 40.0);
  EXPECT_DOUBLE_EQ(us("ddp", {8, 1}), 1000 + inside);
  EXPECT_DOUBLE_EQ(us("mirrored", {8, 1}), 1000 + inside);
  EXPECT_DOUBLE_EQ(us("ddp", {8, 2}), 1000 + two);
  EXPECT_DOUBLE_EQ(us("zero", {8, 2}), 1000 + two) << "one half hidden behind nothing, and the other";
  EXPECT_DOUBLE_EQ(us("local_sgd", {8, 2}), 1000 + two / 5);
}

TEST(StrategyModel, OneDeviceInTheMiddleByHand) {
  EXPECT_DOUBLE_EQ(us("data_parallel", {8, 1}), 1000 + 7 * (2 * (1 + 8) + (1 + 0.4) + 2 * (1 + 0.04)));
  EXPECT_DOUBLE_EQ(us("towers", {8, 1}), 1000 + 16 * (1 + 8));
}

TEST(StrategyModel, ParameterServersByHand) {
  EXPECT_DOUBLE_EQ(us("parameter_server", {8, 1}), 1000 + 2 * (1 + 64)) << "8 workers fetch 80,000 bytes each";
  // Two servers with half of the weights: each sends it to the 4 workers of the other machine.
  EXPECT_DOUBLE_EQ(us("parameter_server", {8, 2}), 1000 + 2 * (20 + 160));
  StrategyAssumptions one_server = one_bucket();
  one_server.servers = 1;
  EXPECT_DOUBLE_EQ(us("parameter_server", {8, 2}, one_server), 1000 + 2 * (20 + 320));
}

TEST(StrategyModel, PipelinesByHand) {
  // A micro-batch has 8 * 4 / 6 samples of 500 bytes, which go on while others' gradients come back.
  const double wire = 2 * (20 + 8 * 4 * 500 / 6.0 / 1000), compute = 1000 / 6.0;
  EXPECT_NEAR(us("model_parallel", {8, 2}), (6 + 7) * std::max(wire, compute), 1e-9);
  StrategyAssumptions slow = one_bucket();
  slow.overlap = 0;
  EXPECT_NEAR(us("model_parallel", {8, 2}, slow), (6 + 7) * (wire + compute), 1e-9);
}

TEST(StrategyModel, OverlapHidesAllButTheLastBucket) {
  StrategyAssumptions assumed = one_bucket();
  assumed.bucket_bytes = 20'000;  // 2 (3 + 1.75) = 9.5 us each
  EXPECT_DOUBLE_EQ(us("ddp", {8, 1}, assumed), 1000 + 9.5);
  assumed.overlap = 0;
  EXPECT_DOUBLE_EQ(us("ddp", {8, 1}, assumed), 1000 + 4 * 9.5);
  assumed.overlap = 0.5;
  EXPECT_DOUBLE_EQ(us("ddp", {8, 1}, assumed), 1000 + 2.5 * 9.5);
}

// At the bandwidth that it returns, both train as many samples a second.
TEST(StrategyModel, EqualBandwidthIsWhereTheyAreEqual) {
  for (const bool is_weak : {true, false})
    for (const train::StrategyKind& kind : train::strategies()) {
      if (!spans_machines(kind.name)) continue;
      StrategyQuestion question{.assumed = one_bucket(), .local = kInside, .net = kBetween, .is_weak = is_weak};
      question.assumed.gradient_bytes = question.assumed.bucket_bytes = 8e6;
      const StrategyAssumptions few = assumptions_for(question, 8), many = assumptions_for(question, 16);
      EXPECT_DOUBLE_EQ(many.samples, is_weak ? 4 : 2);
      const double gbps = equal_gbps(kind.name, few, many, kInside, kBetween, {8, 1}, {16, 4});
      if (gbps == 0 || std::isinf(gbps)) continue;
      const double needed = 8 * few.samples / strategy_step_us(kind.name, few, kInside, kBetween, {8, 1});
      const double reached =
          16 * many.samples / strategy_step_us(kind.name, many, kInside, {kBetween.alpha_us, gbps}, {16, 4});
      EXPECT_NEAR(reached / needed, 1, 1e-6) << kind.name;
    }
  // By hand: 16 of ddp, one on each machine, may take twice the 1020 us; a ring takes 30 (20 + 5000 bytes / b).
  const StrategyAssumptions assumed = one_bucket();
  EXPECT_NEAR(equal_gbps("ddp", assumed, assumed, kInside, kBetween, {8, 1}, {16, 16}),
              5 / ((2 * 1020 - 1000) / 30.0 - 20), 1e-6);
  EXPECT_TRUE(std::isinf(equal_gbps("ddp", assumed, assumed, kInside, {1e6, 1}, {8, 1}, {16, 2})))
      << "no bandwidth makes up for this latency";
  EXPECT_EQ(equal_gbps("towers", assumed, assumed, kInside, kBetween, {8, 1}, {16, 1}), 0)
      << "more at any bandwidth between machines, which it does not use";
}

// -- against what the strategies count on logical CPUs

class FourCpus : public ::testing::Environment {
  void SetUp() override { Device::configure({.cpu = 4}); }
};
const auto* const kFourCpus = ::testing::AddGlobalTestEnvironment(new FourCpus);

// Two layers without buffers; the gradients fill entire cache lines.
train::Training measured_training() {
  train::Training training = train::training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append<nn::Linear>(72, 64, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append<nn::Linear>(64, 16);
    return net;
  };
  return training;
}

double busiest_of(const train::Strategy& strategy) {
  double busiest = 0;
  for (const train::DeviceTraffic& each : strategy.traffic())
    busiest = std::max(busiest, static_cast<double>(each.sent + each.received));
  return busiest;
}

TEST(StrategyModel, HasTheBytesThatStrategiesCount) {
  StrategyAssumptions assumed;
  for (const Tensor& each : measured_training().model()->parameters())
    assumed.gradient_bytes += static_cast<double>(each.bytes());
  const auto batch = train::batch_of(0);
  for (const int devices : {2, 4}) {
    assumed.samples = static_cast<double>(train::kBatch) / devices;
    assumed.output_bytes = 16 * sizeof(float);
    assumed.activation_bytes = 64 * sizeof(float);
    // Samples lie on the first device, which sends the others' parts.
    const double samples = static_cast<double>(batch.first.bytes() + batch.second.bytes()) * (devices - 1) / devices;
    for (const std::string& name : testing::strategies_of_one_process()) {
      const auto strategy = train::make_strategy(name, measured_training(), train::on_cpus(0, devices));
      strategy->step(batch.first, batch.second);
      double expected = busiest_bytes(name, assumed, devices, 1);
      const bool is_towers = train::strategy_named(name).capabilities.has_parameter_device;
      if (is_towers) expected *= (devices - 1.0) / devices;  // a tower lies with the variables
      // One loss over the batch, on the first device: the targets stay there.
      const double inputs = is_towers || name == "mirrored"
                                ? samples
                                : static_cast<double>(batch.first.bytes()) * (devices - 1) / devices;
      EXPECT_NEAR(busiest_of(*strategy), expected + inputs, 2048) << name << " on " << devices;
    }
    testing::expect_all_well(testing::run_ranks(devices, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const Range rows{.start = group->rank() * train::kBatch / devices,
                       .stop = (group->rank() + 1) * train::kBatch / devices};
      for (const char* name : {"ddp", "zero", "local_sgd"}) {
        StrategyAssumptions periodic = assumed;
        periodic.average_period = 1;
        train::StrategyOptions options{.group = group};
        if (std::string(name) == "local_sgd") options.average_period = 1;
        const auto strategy = train::make_strategy(name, measured_training(), options);
        strategy->step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
        EXPECT_NEAR(busiest_of(*strategy), busiest_bytes(name, periodic, devices, 1), 2048) << name;
      }
    }));
  }
  const auto pipeline = train::make_strategy("model_parallel", measured_training(), [] {
    train::StrategyOptions options = train::on_cpus(0, 2);
    options.stage_layers = {2, 1};
    return options;
  }());
  pipeline->step(batch.first, batch.second);
  assumed.samples = static_cast<double>(train::kBatch) / 2;
  EXPECT_EQ(busiest_of(*pipeline),
            busiest_bytes("model_parallel", assumed, 2, 1) + static_cast<double>(batch.second.bytes()));
}

}  // namespace
}  // namespace lockstep::bench
