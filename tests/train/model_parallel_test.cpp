// model_parallel: its weights against those of one device, stages as ranks, what it waits for, and what it
// refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <tuple>

#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "tests/ddp/ranks.h"
#include "tests/faults/hand_job.h"
#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// -- training

// Six layers, one of which draws, and none of which looks at other samples.
Training training_of_layers() {
  Training training = training_of_net();
  training.model = [] {
    manual_seed(7);
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Conv2d>("conv", 2, 4, Size2{3, 3}, nn::Conv2dLayerOptions{.activation = Activation::kReLU});
    net->append<nn::Flatten>();
    net->append_named<nn::Dropout>("drop", 0.25F);
    net->append_named<nn::Linear>("hidden", 64, 8, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append_named<nn::Dropout>("drop2", 0.25F);
    net->append_named<nn::Linear>("out", 8, 3);
    return net;
  };
  return training;
}

struct Trained {
  std::vector<float> weights;
  float last_loss = 0;
  RandomState random;
};

Trained run_steps(Strategy& strategy) {
  manual_seed(11);
  Trained run;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(step);
    run.last_loss = strategy.step(batch.first, batch.second);
  }
  run.random = random_state();
  run.weights = weights_of(strategy.model());
  return run;
}

Trained run_on_one_device() { return run_steps(*make_strategy("mirrored", training_of_layers(), on_cpus(0, 1))); }

StrategyOptions pipeline_options(int stages, int micro_batches) {
  StrategyOptions options = on_cpus(0, stages);
  options.micro_batches = micro_batches;
  return options;
}

TEST(ModelParallel, ComesToTheWeightsOfOneDevice) {
  const Trained one = run_on_one_device();
  EXPECT_GT(largest_difference(one.weights, weights_of(*training_of_layers().model())), 0.01F)
      << "equal weights would say little";
  for (const auto& [stages, micro_batches] : {std::pair{1, 1}, {2, 4}, {3, 1}, {3, 12}, {4, 2}}) {
    const auto strategy =
        make_strategy("model_parallel", training_of_layers(), pipeline_options(stages, micro_batches));
    const Trained run = run_steps(*strategy);
    EXPECT_LT(largest_difference(one.weights, run.weights), 2e-4F)
        << stages << " stages, " << micro_batches << " micro-batches";
    EXPECT_NEAR(one.last_loss, run.last_loss, 1e-3F);
    EXPECT_EQ(one.random, run.random) << "the next step draws what it would on one device";
  }
}

TEST(ModelParallel, ComesToTheWeightsOfDdp) {
  std::vector<float> weights;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto strategy = make_strategy("ddp", training_of_layers(), {.group = group});
    manual_seed(11);
    const Range rows{.start = group->rank() * kBatch / 2, .stop = (group->rank() + 1) * kBatch / 2};
    set_first_sample(rows.start);
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = batch_of(step);
      strategy->step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
    }
    if (group->rank() == 0) weights = weights_of(strategy->model());
  }));
  const auto strategy = make_strategy("model_parallel", training_of_layers(), pipeline_options(2, 2));
  EXPECT_LT(largest_difference(weights, run_steps(*strategy).weights), 2e-4F);
}

// Bit by bit: where a stage computes changes nothing.
TEST(ModelParallel, StagesAsRanksAreStagesAsDevices) {
  for (const int stages : {1, 2, 3}) {
    const Trained devices =
        run_steps(*make_strategy("model_parallel", training_of_layers(), pipeline_options(stages, 4)));
    std::vector<Trained> runs(static_cast<std::size_t>(stages));
    testing::expect_all_well(testing::run_ranks(stages, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const auto strategy = make_strategy("model_parallel", training_of_layers(), {.group = group, .micro_batches = 4});
      runs[static_cast<std::size_t>(group->rank())] = run_steps(*strategy);
      auto* const pipeline = strategy->as<PipelineStages>();
      ASSERT_NE(pipeline, nullptr);
      EXPECT_EQ(pipeline->bubble().stages, stages);
      EXPECT_EQ(sample_numbers(), SampleNumbers{}) << "those of the last micro-batch";
    }));
    for (const Trained& run : runs) {
      EXPECT_EQ(run.weights, devices.weights) << stages << " ranks";
      EXPECT_EQ(run.last_loss, devices.last_loss);
      EXPECT_EQ(run.random, devices.random);
    }
  }
}

TEST(ModelParallel, ItsModelIsThatOfTheUser) {
  const auto strategy = make_strategy("model_parallel", training_of_layers(), pipeline_options(3, 2));
  const auto alone = training_of_layers().model();
  const std::vector<NamedTensor> is = strategy->model().state_dict(), expected = alone->state_dict();
  ASSERT_EQ(is.size(), expected.size());
  for (std::size_t i = 0; i < is.size(); ++i) EXPECT_EQ(is[i].name, expected[i].name);
  EXPECT_EQ(is.front().tensor.device().name(), "cpu:0");
  EXPECT_EQ(is.back().tensor.device().name(), "cpu:2");
  strategy->model().eval();
  alone->eval();
  const auto batch = batch_of(0);
  const Tensor through = strategy->model()(batch.first), by_one = (*alone)(batch.first);
  EXPECT_EQ(through.device().name(), "cpu:2");
  const Tensor host = through.to(cpu_device());
  EXPECT_TRUE(std::equal(host.span<float>().begin(), host.span<float>().end(), by_one.span<float>().begin()));
  EXPECT_EQ(strategy->optimizers().size(), 3u);
  strategy->set_lr(0.125F);
  for (optim::Optimizer* optimizer : strategy->optimizers()) EXPECT_EQ(optimizer->group_lr(0), 0.125F);
}

// Stage 0 of 2 goes forward with micro-batch 1 before it computes the activations of micro-batch 0 again.
TEST(ModelParallel, ActivationCheckpointsDropWhatTheirMicroBatchDropped) {
  struct Dropping : nn::Module {
    nn::Linear linear{64, 64};
    bool keeps;
    explicit Dropping(bool keeps_activations) : keeps(keeps_activations) { add("linear", linear); }
    Tensor forward(const Tensor& x) override {
      const auto compute = [this](const Tensor& input) { return dropout(linear(input), 0.25F, is_training()); };
      return keeps ? compute(x) : checkpoint(compute, x);
    }
  };
  const auto weights = [](bool keeps) {
    Training training = training_of_net();
    training.model = [keeps] {
      manual_seed(7);
      auto net = std::make_unique<nn::Sequential>();
      net->append<nn::Flatten>();
      net->append<nn::Linear>(72, 64);
      net->append<Dropping>(keeps);
      net->append<nn::Linear>(64, 3);
      return net;
    };
    StrategyOptions options = pipeline_options(2, 4);
    options.stage_layers = {3, 1};
    return run_steps(*make_strategy("model_parallel", training, options)).weights;
  };
  EXPECT_EQ(weights(false), weights(true));
}

// The first stage has nothing to train, so no gradient comes back to it.
TEST(ModelParallel, FrozenLayersAndStagesWithoutParameters) {
  Training training = training_of_layers();
  const auto make = training.model;
  training.model = [make] {
    auto net = make();
    net->children()[0].second->freeze();
    return net;
  };
  const Trained one = run_steps(*make_strategy("mirrored", training, on_cpus(0, 1)));
  StrategyOptions options = pipeline_options(3, 3);
  options.stage_layers = {2, 1, 3};
  const auto strategy = make_strategy("model_parallel", training, options);
  EXPECT_EQ(strategy->optimizers().size(), 1u);
  EXPECT_LT(largest_difference(one.weights, run_steps(*strategy).weights), 2e-4F);
  EXPECT_EQ(strategy->traffic()[1].sent, strategy->traffic()[2].received - kSteps * kBatch * sizeof(std::int64_t))
      << "activations alone";
}

TEST(ModelParallel, TrafficAndBubble) {
  StrategyOptions options = pipeline_options(2, 4);
  options.stage_layers = {3, 3};
  const auto strategy = make_strategy("model_parallel", training_of_layers(), options);
  const auto batch = batch_of(0);
  strategy->step(batch.first, batch.second);
  const std::uint64_t activations = kBatch * 64 * sizeof(float);
  EXPECT_EQ(strategy->traffic()[0].sent, activations + batch.second.bytes()) << "the targets lie on the first device";
  EXPECT_EQ(strategy->traffic()[0].received, activations) << "their gradients";
  auto* const pipeline = strategy->as<PipelineStages>();
  ASSERT_NE(pipeline, nullptr);
  const PipelineBubble bubble = pipeline->bubble();
  EXPECT_EQ(bubble.micro_batches, 4);
  EXPECT_DOUBLE_EQ(bubble.expected, 0.2);
  ASSERT_EQ(bubble.idle.size(), 2u);
  for (const double idle : bubble.idle) EXPECT_TRUE(idle >= 0 && idle < 1) << idle;
  EXPECT_EQ(make_strategy("towers", training_of_layers(), on_cpus(0, 2))->as<PipelineStages>(), nullptr);
}

// -- what goes wrong

// A device without kernels, in front of the CPU.
class NoKernels : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  int index() const override { return 9; }
  std::string name() const override { return "bare"; }
  Buffer allocate(std::size_t bytes) override { return cpu_device().allocate(bytes); }
  AllocatorStats allocator_stats() const override { return {}; }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    cpu_device().copy(to, from, bytes, stream);
  }
  void upload(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    cpu_device().copy(to, from, bytes, stream);
  }
  Stream& default_stream() override { return cpu_device().default_stream(); }
  std::unique_ptr<Stream> new_stream() override { return cpu_device().new_stream(); }
  std::unique_ptr<Event> new_event() override { return cpu_device().new_event(); }
  void begin_capture(Stream&) override {}
  std::unique_ptr<Graph> end_capture(Stream&) override { return nullptr; }
  const KernelTable& own_kernels() const override { return none_; }

 private:
  Buffer take_pinned(std::size_t bytes) override { return allocate(bytes); }
  KernelTable none_;
};

TEST(ModelParallel, WhatIsRefused) {
  const auto refused = [](const Training& training, const StrategyOptions& options) {
    return message_of([&] { make_strategy("model_parallel", training, options); });
  };
  EXPECT_THAT(refused(training_of_net(), on_cpus(0, 2)),
              HasSubstr("model_parallel: the model is a Module: stages are runs of layers"));
  Training two_layers = training_of_layers();
  two_layers.model = [] {
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Flatten>();
    net->append<nn::Linear>(72, 3);
    return net;
  };
  EXPECT_THAT(refused(two_layers, on_cpus(0, 3)),
              HasSubstr("3 stages, one for each device, but only 2 layers: every stage needs a layer"));
  StrategyOptions options = on_cpus(0, 2);
  options.stage_layers = {3, 4};
  EXPECT_THAT(refused(training_of_layers(), options),
              HasSubstr(".stage_layers has 2 numbers with sum 7; expected a positive number for each of 2 stages"));
  options.stage_layers = {6, 0};
  EXPECT_THAT(refused(training_of_layers(), options), HasSubstr("expected a positive number"));
  EXPECT_THAT(refused(training_of_layers(), pipeline_options(2, -1)), HasSubstr(".micro_batches is -1"));
  NoKernels bare;
  EXPECT_THAT(
      refused(training_of_layers(), {.devices = {&cpu_device(), &bare}}),
      AllOf(HasSubstr("stage 1: device bare has no kernel for the operator '"), HasSubstr("give another device")));
  EXPECT_THAT(message_of([] { make_strategy("towers", training_of_layers(), pipeline_options(2, 2)); }),
              HasSubstr("towers: .micro_batches and .stage_layers are options of model_parallel"));
  EXPECT_THAT(refused({}, on_cpus(0, 2)), HasSubstr("Training needs all of"));

  const auto strategy = make_strategy("model_parallel", training_of_layers(), pipeline_options(2, 5));
  const auto batch = batch_of(0);
  EXPECT_THAT(message_of([&] { strategy->step(batch.first, batch.second); }),
              HasSubstr("model_parallel: 12 samples per step cannot be split evenly into 5 micro-batches"));
  EXPECT_THAT(message_of([&] { strategy->step(batch.first, slice(batch.second, 0, {.stop = 6})); }),
              HasSubstr("12 inputs but 6 targets"));
  const auto two = make_strategy("model_parallel", training_of_layers(), pipeline_options(2, 2));
  const AutoCast half(DType::kBFloat16);
  EXPECT_THAT(
      message_of([&] { two->step(batch.first, batch.second); }),
      HasSubstr("model_parallel: step() under an AutoCast to bfloat16: this strategy sends activations as float32"));
}

// Rank 1 is wrong alone: the others say why, and do not wait for it.
TEST(ModelParallel, WhatOneRankRefusesAllRanksRefuse) {
  const auto refusals = [](const std::function<void(StrategyOptions&, Training&)>& change) {
    return testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      StrategyOptions options{.group = group, .micro_batches = 4};
      Training training = training_of_layers();
      if (group->rank() == 1) change(options, training);
      make_strategy("model_parallel", training, options);
    });
  };
  using ::testing::Each;
  EXPECT_THAT(refusals([](StrategyOptions& options, Training&) { options.micro_batches = -1; }),
              Each(HasSubstr(".micro_batches is -1")));
  EXPECT_THAT(
      refusals([](StrategyOptions& options, Training&) {
        options.stage_layers = {1, 2};
      }),
      Each(HasSubstr(".stage_layers has 2 numbers with sum 3; expected a positive number for each of 3 stages")));
  EXPECT_THAT(refusals([](StrategyOptions& options, Training&) { options.devices = {&cpu_device()}; }),
              Each(HasSubstr(".devices is for strategies with one process")));
  EXPECT_THAT(refusals([](StrategyOptions&, Training& training) { training.model = training_of_net().model; }),
              Each(HasSubstr("the model is a Module")));
  EXPECT_THAT(refusals([](StrategyOptions&, Training& training) {
                training.optimizer = [](std::vector<NamedTensor>) -> std::unique_ptr<optim::Optimizer> {
                  return nullptr;
                };
              }),
              Each(HasSubstr("Training::optimizer() returned null")));
}

// The loss of the last micro-batch fails; the stages before wait for gradients by then.
TEST(ModelParallel, AFailureInOneStageEndsTheStep) {
  const auto batch = batch_of(0);
  Tensor wrong = batch.second.clone();
  wrong.span<std::int64_t>()[kBatch - 1] = 99;
  const auto strategy = make_strategy("model_parallel", training_of_layers(), pipeline_options(3, 4));
  EXPECT_THAT(message_of([&] { strategy->step(batch.first, wrong); }), HasSubstr("99"));

  const auto failures = testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    make_strategy("model_parallel", training_of_layers(), {.group = group, .micro_batches = 4})
        ->step(batch.first, wrong);
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, HasSubstr("99")) << "each rank says what failed on rank 2";
  EXPECT_THAT(failures[0], HasSubstr("model_parallel: stage 2 (rank 2) failed"));
}

TEST(ModelParallel, ARankThatIsGoneIsNamed) {
  const auto failures = testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto strategy = make_strategy("model_parallel", training_of_layers(), {.group = group, .micro_batches = 4});
    const auto batch = batch_of(0);
    strategy->step(batch.first, batch.second);
    if (group->rank() == 1) group->abort("it has had enough");
    strategy->step(batch.first, batch.second);
  });
  for (const std::string& failure : failures)
    EXPECT_THAT(failure, HasSubstr("rank 1 aborted the group: it has had enough"));
}

// Processes: the stages before and behind the one that is killed end with its name, and soon.
TEST(ModelParallel, AStageThatIsKilledIsNamedByTheOthers) {
  testing::HandJob job(3);
  job.start_all({"20"});
  EXPECT_EQ(job[1].wait(), 128 + SIGKILL) << job[1].errors();
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(job[survivor].wait(std::chrono::seconds(20)), 75) << job[survivor].errors();
    EXPECT_THAT(job[survivor].errors(), HasSubstr("rank 1 (pid "));
  }
}

}  // namespace
}  // namespace lockstep::train
