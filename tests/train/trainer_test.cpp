// Trainer: fit, evaluate and predict with every strategy, over ranks and logical devices, and refused arguments.
#include "lockstep/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sets the devices before any test makes a tensor.
class FourCpus : public ::testing::Environment {
  void SetUp() override { Device::configure({.cpu = 4}); }
};
const auto* const kFourCpus = ::testing::AddGlobalTestEnvironment(new FourCpus);

FitOptions quiet(std::int64_t epochs) { return {.epochs = epochs, .progress = false}; }

struct Learned {
  std::vector<double> loss, accuracy, val_loss, val_accuracy;
  std::vector<float> weights;
};

// Trains a model with dropout, whose masks depend only on the samples, wherever these are computed.
Learned learn(const CompileOptions& options) {
  Trainer trainer([] {
    manual_seed(5);
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Linear>("hidden", 2, 16, nn::LinearLayerOptions{.activation = Activation::kReLU});
    net->append_named<nn::Dropout>("drop", 0.25F);
    net->append_named<nn::Linear>("out", 16, 4);
    return net;
  });
  trainer.compile(options);
  FitOptions fit = quiet(3);
  fit.validation = data::Pipeline(Quadrants(50, 7)).batch(16);
  const History& history = trainer.fit(data::Pipeline(Quadrants(130)).shuffle(40, 3).batch(16).prefetch(), fit);
  return {history.values("loss"), history.values("accuracy"), history.values("val_loss"),
          history.values("val_accuracy"), values_of(trainer.model())};
}

Learned learn_by_ddp(int ranks) {
  std::vector<Learned> learned(static_cast<std::size_t>(ranks));
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    CompileOptions options = classifying("ddp");
    options.strategy_options.group = group;
    learned[static_cast<std::size_t>(group->rank())] = learn(options);
  }));
  for (const Learned& other : learned) {
    EXPECT_EQ(other.loss, learned[0].loss) << "the history differs between ranks";
    EXPECT_EQ(other.val_loss, learned[0].val_loss);
    EXPECT_EQ(other.weights, learned[0].weights);
  }
  return learned[0];
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << what << " of epoch " << i;
}

TEST(Trainer, EveryStrategyTakesTheSameStepsOverAnyNumberOfDevices) {
  const Learned expected = learn_by_ddp(1);
  EXPECT_LT(expected.loss[2], expected.loss[0]);
  EXPECT_GT(expected.val_accuracy[2], 0.9);
  const auto expect_same = [&](const Learned& other, const std::string& name) {
    SCOPED_TRACE(name);
    expect_near(other.loss, expected.loss, "loss");
    expect_near(other.val_loss, expected.val_loss, "val_loss");
    EXPECT_EQ(other.accuracy, expected.accuracy);
    EXPECT_EQ(other.val_accuracy, expected.val_accuracy);
    for (std::size_t i = 0; i < expected.weights.size(); ++i) ASSERT_NEAR(other.weights[i], expected.weights[i], 1e-5F);
  };
  expect_same(learn_by_ddp(2), "ddp, 2 ranks");
  expect_same(learn_by_ddp(4), "ddp, 4 ranks");
  for (const std::string& name : testing::strategies_of_one_process()) expect_same(learn(classifying(name)), name);
}

// Adds a loss of its activations, a mean over the samples of its forward.
struct Penalized : nn::Module {
  nn::Linear hidden{2, 16, {.activation = Activation::kTanh}}, out{16, 4};
  Penalized() {
    add("hidden", hidden);
    add("out", out);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor active = hidden(x);
    nn::add_loss(mean(active * active) * 0.1F);
    return out(active);
  }
};

TEST(Trainer, TrainsOnEachSampleOnceAndWeightsTheLastBatchByItsSamples) {
  std::vector<std::string> strategies = testing::strategies_of_one_process();
  strategies.insert(strategies.end(), {"ddp", "zero"});
  for (const std::string& strategy : strategies)
    for (const std::int64_t samples : {33, 34, 37, 47, 5, 3}) {  // of the last batch of 16: 1, 2, 5, 15, 5, 3
      SCOPED_TRACE(fmt::format("{}, {} samples", strategy, samples));
      std::vector<std::vector<float>> weights;
      std::vector<double> losses;
      const auto train = [&](std::vector<Device*> devices, std::shared_ptr<ProcessGroup> group) {
        Trainer trainer([] {
          manual_seed(5);
          return std::make_unique<Penalized>();
        });
        CompileOptions options = classifying(strategy);
        options.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
          return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.1F, .momentum = 0.9F});
        };
        options.strategy_options.devices = std::move(devices);
        options.strategy_options.group = group;
        trainer.compile(options);
        const History& history = trainer.fit(data::Pipeline(Quadrants(samples)).batch(16), quiet(2));
        EXPECT_EQ(trainer.step(), 2 * ((samples + 15) / 16));
        const double right = history.values("accuracy")[1] * static_cast<double>(samples);
        EXPECT_NEAR(right, std::round(right), 1e-9) << "each sample counts once";
        if (group && group->rank() > 0) return;
        weights.push_back(values_of(trainer.model()));
        losses.push_back(history.values("loss")[1]);
      };
      if (strategy == "ddp" || strategy == "zero") {
        for (const int ranks : {1, 4})
          testing::expect_all_well(testing::run_ranks(
              ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) { train({}, std::move(group)); }));
      } else {
        train({&cpu_device()}, nullptr);
        train({}, nullptr);  // four devices
      }
      ASSERT_EQ(weights.size(), 2U);
      EXPECT_NEAR(losses[0], losses[1], 1e-5);
      for (std::size_t i = 0; i < weights[0].size(); ++i) ASSERT_NEAR(weights[0][i], weights[1][i], 2e-6F) << i;
    }
}

// The loss of an epoch is Keras' mean over its samples, not over its steps.
TEST(Trainer, TheLossOfAnEpochIsTheMeanOverItsSamples) {
  Trainer trainer(make_dense);
  CompileOptions options = classifying("mirrored");
  options.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0});
  };
  trainer.compile(options);
  const double expected = value_of(trainer.evaluate(Quadrants(37), {.batch_size = 37}), "loss", "test");
  EXPECT_NEAR(trainer.fit(data::Pipeline(Quadrants(37)).batch(16), quiet(1)).values("loss")[0], expected, 1e-6);
}

TEST(Trainer, CountsTrainingMetricsOverWholeBatchesAloneIfItDropsTheRemainder) {
  Trainer trainer(make_dense);
  trainer.compile(classifying("mirrored"));
  std::int64_t steps = 0;
  FitOptions options = quiet(2);
  options.drop_remainder = true;
  options.callbacks = {std::make_shared<CountSteps>(steps)};
  trainer.fit(Quadrants(70), options);  // a plain set: batches of 32, shuffled
  EXPECT_EQ(steps, 4) << "two full batches in each epoch";
  EXPECT_EQ(trainer.step(), 4);
  EXPECT_EQ(trainer.epoch(), 2);
  EXPECT_THAT(trainer.history().names(), ElementsAre("loss", "accuracy", "top2", "lr"));
  const double samples = trainer.history().values("accuracy")[1] * 64;
  EXPECT_NEAR(samples, std::round(samples), 1e-9) << "a share of 64 samples";
  EXPECT_GE(trainer.history().values("top2")[1], trainer.history().values("accuracy")[1]);
}

TEST(Trainer, TrainsInTrainingModeAndLeavesTheThreadAsItWas) {
  struct Spy : nn::Module {
    nn::Linear out{2, 4};
    nn::Dropout still{0.5F};
    bool has_trained = false, still_trained = false;
    Spy() {
      add("out", out);
      add("still", still);
    }
    Tensor forward(const Tensor& x) override {
      has_trained = has_trained || is_training();
      still_trained = still_trained || still.is_training();
      return still(out(x));
    }
  };
  Trainer trainer([] { return std::make_unique<Spy>(); });
  trainer.compile(classifying("mirrored"));
  auto& spy = dynamic_cast<Spy&>(trainer.model());
  spy.eval();
  set_first_sample(24);
  trainer.fit(data::Pipeline(Quadrants(32)).batch(16), quiet(1));
  EXPECT_EQ(first_sample(), 24);
  set_first_sample(0);
  EXPECT_TRUE(spy.has_trained);
  spy.still.eval();  // in eval mode on purpose, inside a model in training mode
  spy.still_trained = false;
  FitOptions options = quiet(2);
  options.validation = data::Pipeline(Quadrants(16)).batch(16);
  trainer.fit(data::Pipeline(Quadrants(32)).batch(16), options);
  EXPECT_FALSE(spy.still_trained) << "nor after a validation";
  EXPECT_TRUE(spy.is_training());
}

TEST(Trainer, EndsAfterSoManySteps) {
  Trainer trainer(make_dense);
  trainer.compile(classifying("towers"));
  FitOptions options = quiet(5);
  options.max_steps = 3;
  trainer.fit(data::Pipeline(Quadrants(32)).batch(16), options);
  EXPECT_EQ(trainer.step(), 3);
  EXPECT_EQ(trainer.history().epochs(), 2);
  EXPECT_EQ(trainer.epoch(), 1) << "the second one is not completed";
  options.max_steps = 0;
  options.steps_per_epoch = 1;
  trainer.fit(data::Pipeline(Quadrants(32)).batch(16), options);
  EXPECT_EQ(trainer.step(), 8) << "another fit continues the count";
  options.initial_epoch = options.epochs;
  trainer.fit(data::Pipeline(Quadrants(32)).batch(16), options);
  EXPECT_EQ(trainer.step(), 8) << "a completed training has no steps left";
}

TEST(Trainer, EvaluatesEachSampleOnce) {
  Trainer trainer(make_dense);
  trainer.compile(classifying("mirrored"));
  const Logs alone = trainer.evaluate(Quadrants(37), {.batch_size = 8});
  EXPECT_EQ(alone[0].first, "loss");
  const double right = value_of(alone, "accuracy", "test") * 37;
  EXPECT_NEAR(right, std::round(right), 1e-9);
  testing::expect_all_well(testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    Trainer other(make_dense);
    CompileOptions options = classifying("ddp");
    options.strategy_options.group = group;
    other.compile(options);
    const Logs shared = other.evaluate(Quadrants(37), {.batch_size = 8});
    EXPECT_EQ(value_of(shared, "accuracy", "test"), value_of(alone, "accuracy", "test"));
    EXPECT_EQ(value_of(shared, "top2", "test"), value_of(alone, "top2", "test"));
    EXPECT_NEAR(value_of(shared, "loss", "test"), value_of(alone, "loss", "test"), 1e-6);
  }));
}

TEST(Trainer, PredictsInTheOrderOfTheSet) {
  Trainer trainer(make_dense);
  trainer.compile(classifying("towers"));
  for (const std::int64_t samples : {7, 2}) {  // with 3 ranks, one rank has fewer or none
    const Quadrants set(samples);
    Tensors expected;
    for (std::int64_t i = 0; i < samples; ++i) expected.push_back(trainer.model()(set.get(i, 0)[0].reshaped({1, 2})));
    const auto check = [&](const Tensor& outputs) {
      ASSERT_EQ(outputs.shape(), (Shape{samples, 4}));
      for (std::int64_t i = 0; i < samples * 4; ++i)
        EXPECT_NEAR(outputs.span<float>()[static_cast<std::size_t>(i)],
                    expected[static_cast<std::size_t>(i / 4)].span<float>()[static_cast<std::size_t>(i % 4)], 1e-6F);
    };
    check(trainer.predict(set, {.batch_size = 3}));
    testing::expect_all_well(testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      Trainer other(make_dense);
      CompileOptions options = classifying("ddp");
      options.strategy_options.group = group;
      other.compile(options);
      check(other.predict(set, {.batch_size = 3}));
      check(other.predict(
          data::Pipeline(set).map([](data::Sample sample) { return data::Sample{sample[0]}; })));  // no targets
    }));
  }
}

TEST(Trainer, PrintsTheModelAsATable) {
  Trainer trainer([] {
    auto net = std::make_unique<nn::Sequential>();
    net->append_named<nn::Linear>("hidden", 2, 16).freeze();
    net->append_named<nn::BatchNorm>("norm", 16);
    net->append_named<nn::Linear>("out", 16, 4);
    return net;
  });
  const RandomState before = random_state();
  const std::string table = trainer.summary({{{2}}});
  EXPECT_EQ(random_state(), before) << "before compile() it makes a model";
  EXPECT_THAT(table, HasSubstr("Model: \"Sequential\"\n____"));
  EXPECT_THAT(table, HasSubstr(" Layer (type)              Output Shape              Param #\n====="));
  EXPECT_THAT(table, HasSubstr(" hidden (Linear)           (None, 16)                     48\n"));
  EXPECT_THAT(table, HasSubstr(" norm (BatchNorm)          (None, 16)                     64\n"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "Total params: 180 (720.00 B)\nTrainable params: 100 (400.00 B)\nNon-trainable params: 80 (320.00 B)\n"));
  trainer.compile(classifying("mirrored"));
  EXPECT_EQ(trainer.summary({{{2}}}), table);
}

// -- refused arguments

TEST(Trainer, RefusesWhatItCannotCompile) {
  Trainer trainer(make_dense);
  const auto compile = [&](const std::function<void(CompileOptions&)>& change) {
    return message_of([&] {
      CompileOptions options = classifying("mirrored");
      change(options);
      trainer.compile(options);
    });
  };
  EXPECT_THAT(compile([](auto& options) { options.strategy = "horovod"; }),
              HasSubstr("unknown strategy 'horovod': expected one of ddp, mirrored"));
  EXPECT_THAT(compile([](auto& options) { options.strategy = "model_parallel"; }),
              HasSubstr("no device with the entire model"));
  EXPECT_THAT(compile([](auto& options) { options.strategy = "parameter_server"; }),
              HasSubstr("parameter_server: which ranks are servers?"));
  EXPECT_THAT(compile([](auto& options) { options.strategy = "local_sgd"; }),
              HasSubstr("has different weights on each rank"));
  EXPECT_THAT(compile([](auto& options) { options.loss = {}; }), HasSubstr(".optimizer and .loss are needed"));
  EXPECT_THAT(compile([](auto& options) { options.metrics.emplace_back("", Accuracy()); }),
              HasSubstr("a metric has no name"));
  EXPECT_THAT(compile([](auto& options) { options.metrics.emplace_back("loss", Accuracy()); }),
              HasSubstr("'loss' is taken"));
  EXPECT_THAT(compile([](auto& options) { options.metrics.emplace_back("accuracy", Accuracy()); }),
              HasSubstr("'accuracy' is taken"));
  EXPECT_THAT(compile([](auto& options) { options.metrics.emplace_back("val_x", Accuracy()); }),
              HasSubstr("val_ are reserved for the validation"));
  EXPECT_THAT(message_of([&] { trainer.fit(Quadrants(32)); }), HasSubstr("Trainer::fit: call compile() first"));
  EXPECT_THAT(message_of([] { Trainer({}); }), HasSubstr("the function that makes the model is empty"));
}

TEST(Trainer, RefusesSetsAndBatchesThatDoNotFit) {
  Trainer trainer(make_dense);
  trainer.compile(classifying("mirrored"));  // four devices
  const auto fit = [&](const data::Pipeline& set, FitOptions options = quiet(1)) {
    return message_of([&] { trainer.fit(set, options); });
  };
  const Quadrants set(64);
  EXPECT_THAT(fit(data::Pipeline(set).batch(30)),
              HasSubstr("a batch of 30 samples cannot be split evenly among 4 devices: choose a multiple of 4"));
  EXPECT_THAT(fit(data::Pipeline(set).batch(128, {.drop_remainder = true})),
              HasSubstr("a batch of 128 samples is larger than the set, which has 64, and drop_remainder leaves out"));
  EXPECT_THAT(fit(Quadrants(0)), HasSubstr("the data set is empty"));
  EXPECT_THAT(fit(data::Pipeline(set).map([](data::Sample sample) { return data::Sample{sample[0]}; })),
              HasSubstr("a sample of the set has 1 tensor: loss and metrics need an input and a target"));
  FitOptions options = quiet(1);
  options.batch_size = 16;
  EXPECT_THAT(fit(data::Pipeline(set).batch(32), options), HasSubstr("got batch_size 16 and batches of 32"));
  EXPECT_THAT(fit(set, quiet(0)), HasSubstr("got epochs 0 and initial_epoch 0"));
  options = quiet(1);
  options.validation = Quadrants(0);
  EXPECT_THAT(fit(set, options), HasSubstr("the data set is empty"));
  options = quiet(1);
  options.steps_per_epoch = 9;
  EXPECT_THAT(fit(set, options), HasSubstr("steps_per_epoch 9: an epoch has 2 steps of 32 samples"));
  EXPECT_THAT(message_of([&] { trainer.evaluate(Quadrants(0)); }),
              HasSubstr("Trainer::evaluate: rank 0: the data set is empty"));
  EXPECT_THAT(message_of([&] { trainer.predict(Quadrants(0)); }),
              HasSubstr("Trainer::predict: rank 0: the data set is empty"));
  EXPECT_EQ(trainer.step(), 0) << "no step was made";
}

TEST(Trainer, RefusesABatchThatRanksDoNotDivideOnAllOfThem) {
  const auto failures = testing::run_ranks(3, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    Trainer trainer(make_dense);
    CompileOptions options = classifying("ddp");
    options.strategy_options.group = group;
    trainer.compile(options);
    trainer.fit(data::Pipeline(Quadrants(64)).batch(32), quiet(1));
  });
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(failures[rank],
                HasSubstr(fmt::format("rank {}: a batch of 32 samples cannot be split evenly among 3 devices", rank)));
}

TEST(Trainer, NamesTheStepOfALossThatIsNoNumber) {
  Trainer trainer(make_dense);
  CompileOptions options = classifying("towers");
  options.loss = [](const Tensor& outputs, const Tensor&) { return mean(outputs) * NAN; };
  options.metrics.clear();
  trainer.compile(options);
  EXPECT_THAT(message_of([&] { trainer.fit(Quadrants(64), quiet(1)); }), AllOf(HasSubstr("loss"), HasSubstr("step 1")));
}

}  // namespace
}  // namespace lockstep::train
