// Trainer with parameter_server: all ranks make the same calls, workers train, servers serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;

CompileOptions served(const Group& group, int servers) {
  CompileOptions options = classifying("parameter_server");
  options.strategy_options.group = group;
  options.strategy_options.parameter_server.servers = servers;
  return options;
}

const data::Pipeline& points() {
  static const data::Pipeline kPoints = data::Pipeline(Quadrants(96)).cache().shuffle().batch(32);
  return kPoints;
}

FitOptions with_validation(std::int64_t epochs, std::int64_t initial_epoch = 0) {
  return {.epochs = epochs,
          .initial_epoch = initial_epoch,
          .validation = data::Pipeline(Quadrants(50, 7)).batch(16),
          .progress = false};
}

// The results that each rank has of fit(), evaluate() and predict().
struct Seen {
  std::vector<double> loss, accuracy, val_loss, lr;
  Logs evaluated;
  std::vector<float> predicted, weights;
  std::int64_t step = 0, epoch = 0;
};

Seen run_calls(const CompileOptions& options) {
  Trainer trainer(make_dense);
  trainer.compile(options);
  const History& history = trainer.fit(points(), with_validation(3));
  Seen seen{.loss = history.values("loss"),
            .accuracy = history.values("accuracy"),
            .val_loss = history.values("val_loss"),
            .lr = history.values("lr"),
            .evaluated = trainer.evaluate(data::Pipeline(Quadrants(50, 7)).batch(16)),
            .step = trainer.step(),
            .epoch = trainer.epoch()};
  const Tensor outputs = trainer.predict(data::Pipeline(Quadrants(10, 9)));
  seen.predicted.assign(outputs.span<float>().begin(), outputs.span<float>().end());
  EXPECT_THAT(trainer.summary({{{2}}}), HasSubstr("Total params"));
  if (trainer.strategy().as<ParameterHolder>() == nullptr) seen.weights = values_of(trainer.model());
  return seen;
}

TEST(TrainerWithServers, AllRanksMakeTheSameCallsAndHaveDdpsResults) {
  std::vector<Seen> ddp(2);
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
    CompileOptions options = classifying("ddp");
    options.strategy_options.group = group;
    ddp[static_cast<std::size_t>(group->rank())] = run_calls(options);
  }));
  for (const std::size_t min_shard_bytes : {std::size_t{0}, std::size_t{32}}) {
    std::vector<Seen> seen(4);
    testing::expect_all_well(testing::run_ranks(4, "shm", [&](const Group& group) {
      CompileOptions options = served(group, 2);
      options.strategy_options.parameter_server.min_shard_bytes = min_shard_bytes;
      seen[static_cast<std::size_t>(group->rank())] = run_calls(options);
    }));
    EXPECT_EQ(seen[0].weights, ddp[0].weights) << "the bits of ddp";
    for (const Seen& each : seen) {  // the servers, too
      EXPECT_EQ(each.loss, ddp[0].loss);
      EXPECT_EQ(each.accuracy, ddp[0].accuracy);
      EXPECT_EQ(each.val_loss, ddp[0].val_loss);
      EXPECT_THAT(each.lr, Each(static_cast<double>(0.05F)));
      EXPECT_EQ(each.evaluated, ddp[0].evaluated);
      EXPECT_EQ(each.predicted, ddp[0].predicted);
      EXPECT_EQ(each.step, 9);
      EXPECT_EQ(each.epoch, 3);
    }
  }
}

TEST(TrainerWithServers, SeveralDevicesAWorkerDivideTheBatch) {
  std::vector<double> two, one;
  const auto losses_with = [](int devices) {
    std::vector<double> losses;
    testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
      CompileOptions options = served(group, 1);
      const auto cpus = logical_devices(DeviceKind::kCpu);
      for (int i = 0; i < devices && group->rank() == 0; ++i)
        options.strategy_options.devices.push_back(cpus[static_cast<std::size_t>(i)]);
      Trainer trainer(make_dense);
      trainer.compile(options);
      const History& history = trainer.fit(points(), with_validation(3));
      if (group->rank() == 1) losses = history.values("loss");
    }));
    return losses;
  };
  two = losses_with(2);
  one = losses_with(1);
  ASSERT_EQ(two.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5);
}

// With the callbacks of a job that is started again: the checkpoint is the workers', and servers continue from it.
TEST(TrainerWithServers, AResumedTrainingHasTheBitsOfOneThatWasNotStopped) {
  const auto train = [](const std::string& folder, std::int64_t epochs) {
    std::vector<float> weights;
    std::vector<std::vector<double>> losses(3);
    testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
      Trainer trainer(make_dense);
      trainer.compile(served(group, 1));
      const auto state = trainer.load(folder);
      FitOptions options = with_validation(epochs, state ? state->epoch : 0);
      options.callbacks = {std::make_shared<ModelCheckpoint>(folder)};
      losses[static_cast<std::size_t>(group->rank())] = trainer.fit(points(), options).values("loss");
      EXPECT_EQ(trainer.epoch(), epochs);
      if (group->rank() == 0) weights = values_of(trainer.model());
    }));
    EXPECT_EQ(losses[0].size(), static_cast<std::size_t>(epochs)) << "the history of all epochs";
    EXPECT_EQ(losses[2], losses[0]) << "on the server, too";
    return weights;
  };
  const std::string cut = testing::temporary("cut");
  train(cut, 2);
  EXPECT_EQ(train(cut, 4), train(testing::temporary("whole"), 4));
}

TEST(TrainerWithServers, EarlyStoppingGivesTheServersTheBestWeights) {
  std::vector<std::vector<float>> weights(2);
  double best = 0, evaluated = 1;
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
    Trainer trainer(make_dense);
    trainer.compile(served(group, 1));
    FitOptions options = with_validation(6);
    options.callbacks = {
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 9, .restore_best_weights = true}),
        std::make_shared<LearningRate>([](std::int64_t step) { return step < 6 ? 0.02F : 2.0F; })};
    const History& history = trainer.fit(points(), options);
    const Logs logs = trainer.evaluate(*options.validation);
    if (group->rank() < 2) weights[static_cast<std::size_t>(group->rank())] = values_of(trainer.model());
    if (group->rank() != 0) return;
    const auto& values = history.values("val_loss");
    best = *std::min_element(values.begin(), values.end());
    evaluated = value_of(logs, "loss", "the test");
  }));
  EXPECT_EQ(evaluated, best);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(TrainerWithServers, MistakesOfTheWorkersAreThrownOnAllRanksAndTheJobGoesOn) {
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
    Trainer trainer(make_dense);
    trainer.compile(served(group, 1));
    EXPECT_THAT(message_of([&] { trainer.fit(points(), {.epochs = 0, .progress = false}); }),
                HasSubstr("got epochs 0 and initial_epoch 0"));
    trainer.fit(points(), {.epochs = 1, .progress = false});
    EXPECT_EQ(trainer.step(), 3);
  }));
}

TEST(TrainerWithServers, AWorkerThatFailsEndsTheJobForAll) {
  struct Fails : Callback {
    bool fails;
    explicit Fails(bool fails) : fails(fails) {}
    void on_step_end(Trainer&, std::int64_t step, const Logs&) override {
      if (fails && step == 2) throw FileError("the disk is full");
    }
  };
  const auto failures = testing::run_ranks(3, "shm", [&](const Group& group) {
    Trainer trainer(make_dense);
    trainer.compile(served(group, 1));
    trainer.fit(points(), {.epochs = 9, .callbacks = {std::make_shared<Fails>(group->rank() == 1)}, .progress = false});
  });
  EXPECT_THAT(failures, Each(HasSubstr("the disk is full")));
}

// Also those that are no std::exception: all ranks leave the call, and make the next one.
TEST(TrainerWithServers, AForeignExceptionEndsTheCallForTheServers) {
  struct Refuses : Callback {
    void check(const Trainer&) override { throw 42; }
  };
  testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
    Trainer trainer(make_dense);
    trainer.compile(served(group, 1));
    const FitOptions refused{.epochs = 1, .callbacks = {std::make_shared<Refuses>()}, .progress = false};
    if (group->rank() == 2) {
      EXPECT_THAT(message_of([&] { trainer.fit(points(), refused); }),
                  HasSubstr("on the workers: an exception that is not a std::exception"));
    } else {
      EXPECT_THROW(trainer.fit(points(), refused), int);
    }
    trainer.fit(points(), {.epochs = 1, .progress = false});
    EXPECT_EQ(trainer.step(), 3) << "the servers take part in further calls";
  }));
}

TEST(TrainerWithServers, AnEpochFetchesNoStateOfTheOptimizer) {
  const auto received_in = [](std::int64_t epochs) {
    std::uint64_t received = 0;
    testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
      Trainer trainer(make_dense);
      trainer.compile(served(group, 1));
      const History& history =
          trainer.fit(points(), {.epochs = epochs, .steps_per_epoch = 6 / epochs, .progress = false});
      EXPECT_EQ(history.values("lr").back(), static_cast<double>(0.05F));
      if (group->rank() == 0) received = trainer.strategy().traffic().front().received;
    }));
    return received;
  };
  EXPECT_EQ(received_in(6) - received_in(2), 4 * sizeof(float)) << "the rates of four more epochs";
}

TEST(TrainerWithServers, OptionsWithUnequalStepsAreRefusedByName) {
  EXPECT_THAT(testing::run_ranks(3, "shm",
                                 [&](const Group& group) {
                                   CompileOptions options = served(group, 1);
                                   options.strategy_options.parameter_server.backup_workers = 1;
                                   Trainer trainer(make_dense);
                                   trainer.compile(options);
                                 }),
              Each(AllOf(HasSubstr("'parameter_server' with .backup_workers"), HasSubstr("make_strategy()"))));
  EXPECT_THAT(testing::run_ranks(3, "shm",
                                 [&](const Group& group) {
                                   CompileOptions options = served(group, 1);
                                   options.strategy_options.parameter_server.staleness = 2;
                                   Trainer trainer(make_dense);
                                   trainer.compile(options);
                                 }),
              Each(HasSubstr("with .staleness 2: each worker has weights of another moment")));
}

}  // namespace
}  // namespace lockstep::train
