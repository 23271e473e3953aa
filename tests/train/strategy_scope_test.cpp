// scope() of a strategy: what is made in it is the strategy's, and what was made elsewhere is refused.
#include "lockstep/train/strategy_scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/strategy_training.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<Device*> cpus(std::size_t count) {
  std::vector<Device*> all = logical_devices(DeviceKind::kCpu);
  all.resize(count);
  return all;
}

CompileOptions classifying_by_scope() { return classifying(""); }

std::unique_ptr<Trainer> trainer_in(const StrategyChoice& strategy) {
  return strategy.scope([] {
    auto made = std::make_unique<Trainer>(make_dense);
    made->compile(classifying_by_scope());
    return made;
  });
}

FitOptions two_epochs() { return {.epochs = 2, .progress = false}; }

TEST(StrategyScope, ATrainerTakesItsStrategyAndDevices) {
  const MirroredStrategy strategy(cpus(3));
  EXPECT_EQ(strategy.num_replicas_in_sync(), 3);
  const auto trainer = trainer_in(strategy);
  EXPECT_EQ(trainer->strategy().name(), std::string("mirrored"));
  EXPECT_EQ(trainer->strategy().devices(), cpus(3));
  trainer->fit(data::Pipeline(Quadrants(96)).shuffle().batch(24), two_epochs());

  Trainer named(make_dense);  // the same by a word
  CompileOptions options = classifying("mirrored");
  options.strategy_options.devices = cpus(3);
  named.compile(options);
  named.fit(data::Pipeline(Quadrants(96)).shuffle().batch(24), two_epochs());
  EXPECT_EQ(values_of(trainer->model()), values_of(named.model()));
  EXPECT_EQ(trainer->history().values("loss"), named.history().values("loss"));
}

// Its variables are mirrored: a copy on each device of the strategy, and all have the same bits after each step.
TEST(StrategyScope, ModelsAreMirroredVariables) {
  const MirroredStrategy choice(cpus(4));
  const auto strategy = choice.scope([] { return make_strategy(training_of_net()); });
  const auto replicas = strategy->replicas();
  ASSERT_EQ(replicas.size(), 4u);
  EXPECT_EQ(replicas[0], &strategy->model());
  for (std::size_t i = 0; i < replicas.size(); ++i)
    for (const NamedTensor& each : replicas[i]->named_parameters())
      EXPECT_EQ(&each.tensor.device(), cpus(4)[i]) << each.name << " of replica " << i;
  for (int step = 0; step < 3; ++step) {
    const auto batch = batch_of(step);
    const std::vector<float> before = weights_of(*replicas[0]);
    strategy->step(batch.first, batch.second);
    EXPECT_NE(weights_of(*replicas[0]), before);
    for (nn::Module* replica : replicas) EXPECT_EQ(weights_of(*replica), weights_of(*replicas[0]));
  }
}

TEST(StrategyScope, ATrainerMayBeCompiledBehindIt) {
  const StrategyChoice strategy("towers", {.devices = cpus(2)});
  const auto trainer = strategy.scope([] { return std::make_unique<Trainer>(make_dense); });
  trainer->compile(classifying_by_scope());
  EXPECT_EQ(trainer->strategy().name(), std::string("towers"));
  trainer->compile(classifying("towers"));  // by its own name, anew
  trainer->fit(data::Pipeline(Quadrants(32)).batch(16), two_epochs());
  EXPECT_EQ(trainer->strategy().devices().size(), 2u);
}

TEST(StrategyScope, IsThatOfAnyStrategy) {
  for (const std::string& name : testing::strategies_of_one_process()) {
    const StrategyChoice strategy(name, {.devices = cpus(2)});
    EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
    EXPECT_EQ(trainer_in(strategy)->strategy().name(), name);
  }
  testing::expect_all_well(testing::run_ranks(2, "threads", [](std::shared_ptr<ProcessGroup> group) {
    for (const char* name : {"ddp", "zero"}) {
      const StrategyChoice strategy(name, {.group = group});
      EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
      const auto trainer = trainer_in(strategy);
      trainer->fit(data::Pipeline(Quadrants(32)).batch(16), two_epochs());
      EXPECT_EQ(trainer->strategy().replicas().size(), 1u);
    }
  }));
  const StrategyChoice pipeline("model_parallel", {.devices = cpus(2)});
  EXPECT_EQ(pipeline.num_replicas_in_sync(), 1);
  const auto layers = pipeline.scope([] {
    Training training = training_of_net();
    training.model = make_dense;
    return make_strategy(training);
  });
  EXPECT_EQ(layers->name(), std::string("model_parallel"));
  EXPECT_THAT(message_of([] { StrategyChoice("parameter_server").num_replicas_in_sync(); }),
              HasSubstr("take its workers()"));
}

TEST(StrategyScope, EndsWithItsFunctionAndIsOfItsThreadAlone) {
  const MirroredStrategy strategy(cpus(2));
  EXPECT_THROW(strategy.scope([]() -> void { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(StrategyChoice::of_thread(), std::nullopt);
  strategy.scope([&] {
    EXPECT_EQ(StrategyChoice::of_thread(), strategy);
    strategy.scope([] {});  // its own again
    EXPECT_EQ(StrategyChoice::of_thread(), strategy);
    std::thread([] {
      EXPECT_EQ(StrategyChoice::of_thread(), std::nullopt);
      EXPECT_EQ(nn::Linear(1, 1).built_in_scope(), 0u);
      EXPECT_THAT(message_of([] { make_strategy(training_of_net()); }),
                  HasSubstr("which one? Name it, or call this in the scope()"));
    }).join();
  });
  EXPECT_EQ(nn::Linear(1, 1).built_in_scope(), 0u);
}

TEST(StrategyScope, AModelThatWasBuiltElsewhereIsRefused) {
  const MirroredStrategy strategy(cpus(2)), other(cpus(2));
  Training training = training_of_net();
  auto before = std::make_unique<Net>();
  training.model = [&] { return std::move(before); };
  EXPECT_THAT(message_of([&] { strategy.scope([&] { make_strategy(training); }); }),
              AllOf(HasSubstr("a module of the model (Module) was built outside of every scope"),
                    HasSubstr("in the scope of 'mirrored'")));

  auto elsewhere = other.scope([] { return std::make_unique<Net>(); });
  training.model = [&] { return std::move(elsewhere); };
  EXPECT_THAT(message_of([&] { strategy.scope([&] { make_strategy(training); }); }),
              HasSubstr("was built in another scope"));

  auto inside = strategy.scope([] { return std::make_unique<Net>(); });
  training.model = [&] { return std::move(inside); };
  EXPECT_THAT(message_of([&] { make_strategy("towers", training, {.devices = cpus(2)}); }),
              AllOf(HasSubstr("was built in a strategy's scope"), HasSubstr("the strategy is made outside of it")));

  // A part of the model that all replicas would share.
  struct Shares : nn::Module {
    nn::Linear own{2, 4};
    Shares(nn::Module& shared) {
      add("own", own);
      add("shared", shared);
    }
  };
  nn::Linear shared(4, 4);
  const auto trainer =
      strategy.scope([&] { return std::make_unique<Trainer>([&] { return std::make_unique<Shares>(shared); }); });
  EXPECT_THAT(message_of([&] { trainer->compile(classifying_by_scope()); }),
              HasSubstr("a module of the model (Linear) was built outside"));
}

TEST(StrategyScope, TwoStrategiesAreRefused) {
  const MirroredStrategy mirrored(cpus(2)), another(cpus(2));
  const StrategyChoice towers("towers", {.devices = cpus(2)});
  EXPECT_THAT(message_of([&] { mirrored.scope([&] { towers.scope([] {}); }); }),
              HasSubstr("scope(): the scope of strategy 'towers' within that of 'mirrored'"));
  EXPECT_THAT(message_of([&] { mirrored.scope([&] { another.scope([] {}); }); }),
              HasSubstr("within that of another 'mirrored'"));
  EXPECT_THAT(message_of([&] { mirrored.scope([] { make_strategy("towers", training_of_net()); }); }),
              HasSubstr("make_strategy: strategy 'towers' in the scope of 'mirrored'"));
  EXPECT_THAT(
      message_of([&] { mirrored.scope([] { make_strategy("mirrored", training_of_net(), {.devices = cpus(1)}); }); }),
      HasSubstr("make_strategy: options of a strategy in the scope of 'mirrored', which has its own"));
  Trainer outside(make_dense);
  EXPECT_THAT(message_of([&] { mirrored.scope([&] { outside.compile(classifying_by_scope()); }); }),
              HasSubstr("in the scope of strategy 'mirrored', but this Trainer was made outside it"));
  const auto inside = mirrored.scope([] { return std::make_unique<Trainer>(make_dense); });
  EXPECT_THAT(message_of([&] { towers.scope([&] { inside->compile(classifying_by_scope()); }); }),
              HasSubstr("in the scope of strategy 'towers', but this Trainer was made in another one"));
  EXPECT_THAT(message_of([&] { inside->compile(classifying("towers")); }),
              HasSubstr("Trainer::compile: strategy 'towers' in the scope of 'mirrored'"));
  EXPECT_THAT(message_of([] { StrategyChoice("horovod"); }),
              HasSubstr("unknown strategy 'horovod': expected one of ddp, mirrored"));
  EXPECT_THAT(message_of([] {
                MirroredStrategy({&cpu_device(), &cpu_device()});
              }),
              HasSubstr("mirrored: cpu:0 comes twice in the list of devices"));
}

// A mistake of one rank is an error on all of them.
TEST(StrategyScope, OfOneRankThatDiffersEndsTheCallOnAll) {
  const auto failures = testing::run_ranks(2, "threads", [](std::shared_ptr<ProcessGroup> group) {
    const StrategyChoice ddp("ddp", {.group = group});
    Trainer outside(make_dense);
    if (group->rank() == 0) {
      trainer_in(ddp);
      return;
    }
    ddp.scope([&] { outside.compile(classifying_by_scope()); });
  });
  EXPECT_THAT(failures, Each(HasSubstr("this Trainer was made outside it")));
}

}  // namespace
}  // namespace lockstep::train
