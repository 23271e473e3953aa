// A Trainer's checkpoint that was saved within an epoch continues after its last step, with any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/mid_epoch_parts.h"

namespace lockstep::train::trainer_mid_epoch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

// Continues from each step's checkpoint of a training, and compares with it.
void expect_same_bits_from_each_step(const CompileOptions& options, const std::string& folder) {
  const auto straight = made(options);
  straight->fit(points(), fitting({every_step(folder)}));
  for (std::int64_t step = 1; step <= kEpochs * kSteps; ++step) {
    const auto resumed = made(options);
    const auto state = resumed->load(folder + fmt::format("/step-{:08}", step));
    ASSERT_TRUE(state) << step;
    EXPECT_EQ(state->epoch, step / kSteps) << "the epochs that were complete";
    std::int64_t steps = 0;
    resumed->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, state->epoch));
    EXPECT_EQ(steps, kEpochs * kSteps - step);
    EXPECT_EQ(values_of(resumed->history()), values_of(straight->history())) << step;
    EXPECT_EQ(train::values_of(resumed->model()), train::values_of(straight->model())) << step;
  }
}

TEST(TrainerMidEpoch, EachStepOnOneProcess) {
  for (const char* strategy : {"ddp", "mirrored", "towers"}) {
    const Folder folder;
    expect_same_bits_from_each_step(options_for(strategy, nullptr), folder.path());
  }
}

TEST(TrainerMidEpoch, EachStepOnTwoRanks) {
  for (const char* strategy : {"ddp", "zero"}) {
    const Folder folder;
    testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
      expect_same_bits_from_each_step(options_for(strategy, group), folder.path());
    }));
  }
}

// Collects the samples' numbers, which are their targets.
class Seen {
 public:
  LossFunction loss() {
    return [this](const Tensor& outputs, const Tensor& targets) {
      const std::lock_guard lock(mutex_);
      for (const float number : targets.span<float>()) numbers_.insert(static_cast<std::int64_t>(number));
      return nn::mse_loss(outputs, Tensor::zeros(outputs.shape()));
    };
  }
  const std::multiset<std::int64_t>& numbers() const { return numbers_; }

 private:
  std::mutex mutex_;
  std::multiset<std::int64_t> numbers_;
};

class Numbers : public data::Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  data::Sample get(std::int64_t index, std::int64_t) const override {
    return {Tensor::full({2}, static_cast<float>(index) / kSamples), Tensor::full({1}, static_cast<float>(index))};
  }
};

std::unique_ptr<nn::Module> make_linear() {
  manual_seed(5);
  auto net = std::make_unique<nn::Sequential>();
  net->append<nn::Linear>(2, 1);
  return net;
}

void train_on(int ranks, Seen& seen, const std::string& folder, std::int64_t steps, std::vector<double>& losses) {
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](Group group) {
    Trainer trainer(make_linear);
    trainer.compile({.optimizer =
                         [](std::vector<NamedTensor> parameters) {
                           return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.01F});
                         },
                     .loss = seen.loss(),
                     .strategy = "ddp",
                     .strategy_options = {.group = group}});
    const auto state = trainer.load(folder);
    trainer.fit(data::Pipeline(Numbers()).shuffle(0, 4).batch(kBatch),
                {.epochs = 2, .initial_epoch = state ? state->epoch : 0, .max_steps = steps, .progress = false});
    trainer.save(folder);
    if (group->rank() == 0) losses = trainer.history().values("loss");
  }));
}

// 3 steps on 2 ranks, 4 on 3 ranks, across the end of an epoch, the rest on 1: two epochs of each sample once.
TEST(TrainerMidEpoch, OtherNumbersOfRanksLoseAndRepeatNoSample) {
  const Folder folder;
  Seen seen, alone;
  std::vector<double> losses, expected;
  train_on(2, seen, folder.path(), 3, losses);
  train_on(3, seen, folder.path(), 4, losses);
  train_on(1, seen, folder.path(), 0, losses);
  EXPECT_EQ(seen.numbers().size(), 2U * kSamples);
  for (std::int64_t number = 0; number < kSamples; ++number) EXPECT_EQ(seen.numbers().count(number), 2U) << number;
  const Folder other;
  train_on(1, alone, other.path(), 0, expected);
  ASSERT_EQ(losses.size(), 2U);
  for (std::size_t epoch = 0; epoch < 2; ++epoch)
    EXPECT_NEAR(losses[epoch], expected[epoch], 1e-5 * expected[epoch]) << "of all samples of the epoch";
}

TEST(TrainerMidEpoch, AnotherSetOrOtherMetricsAreRefusedOnAllRanks) {
  const Folder folder;
  made(options_for("ddp", nullptr))->fit(points(), fitting({every_step(folder.path())}));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
    const auto trainer = made(options_for("ddp", group));
    const auto state = trainer->load(folder.path() + "/step-00000008");
    ASSERT_TRUE(state);
    const auto refusal = [&](const data::Pipeline& set, const FitOptions& options) {
      try {
        trainer->fit(set, options);
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("none");
    };
    EXPECT_THAT(refusal(data::Pipeline(Quadrants(kSamples)).shuffle().batch(6), fitting({}, 1)),
                AllOf(HasSubstr("saved in epoch 1 after 2 steps of: a set of 66 samples, shuffled with seed 0, in "
                                "batches of 12, 6 steps per epoch"),
                      HasSubstr("this fit has: a set of 66 samples, shuffled with seed 0, in batches of 6, 11 steps")));
    EXPECT_THAT(refusal(data::Pipeline(Quadrants(kSamples)).shuffle(0, 9).batch(kBatch), fitting({}, 1)),
                HasSubstr("shuffled with seed 9"));
    EXPECT_THAT(refusal(data::Pipeline(Quadrants(kSamples)).shuffle(10).batch(kBatch), fitting({}, 1)),
                HasSubstr("shuffled with seed 0 and a buffer of 10"));
    FitOptions without_metrics = fitting({}, 1);
    without_metrics.training_metrics = false;
    EXPECT_THAT(refusal(points(), without_metrics), HasSubstr("counts of training metrics; this fit has 0"));
    std::int64_t steps = 0;
    trainer->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, 1));
    EXPECT_EQ(steps, 10) << "the position is not lost by a refused call";
  }));
}

TEST(TrainerMidEpoch, AFitThatBeginsElsewhereMakesWholeEpochs) {
  const Folder folder;
  made(options_for("ddp", nullptr))->fit(points(), fitting({every_step(folder.path())}));
  for (const std::int64_t first : {0, 2}) {
    const auto trainer = made(options_for("ddp", nullptr));
    ASSERT_TRUE(trainer->load(folder.path() + "/step-00000008"));
    std::int64_t steps = 0;
    trainer->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, first));
    EXPECT_EQ(steps, (kEpochs - first) * kSteps);
  }
}

// Stops after a step, as Preemption does.
class StopsAt : public Callback {
 public:
  StopsAt(std::int64_t step, std::string folder) : step_(step), folder_(std::move(folder)) {}
  void on_step_checkpoint(Trainer& trainer, std::int64_t step) override {
    if (step != step_) return;
    trainer.preempt();
    if (!folder_.empty()) trainer.save(folder_);
  }
  void on_epoch_end(Trainer&, std::int64_t epoch, const Logs&) override { ended.push_back(epoch); }
  void on_train_end(Trainer&) override { ended.push_back(-1); }
  std::vector<std::int64_t> ended;

 private:
  std::int64_t step_;
  std::string folder_;
};

// In the middle and at the end of an epoch; the checkpoint is saved by the callback or after fit().
TEST(TrainerMidEpoch, PreemptEndsAFitBetweenTwoSteps) {
  const auto straight = made(options_for("ddp", nullptr));
  straight->fit(points(), fitting());
  for (const std::int64_t step : {8, 12})
    for (const bool saves_later : {false, true}) {
      const Folder folder;
      const auto stops = std::make_shared<StopsAt>(step, saves_later ? "" : folder.path());
      const auto trainer = made(options_for("ddp", nullptr));
      trainer->fit(points(), fitting({stops}));
      EXPECT_TRUE(trainer->is_preempted());
      EXPECT_EQ(trainer->step(), step);
      EXPECT_EQ(trainer->epoch(), 1);
      EXPECT_THAT(trainer->history().numbers(), ElementsAre(0));
      EXPECT_THAT(stops->ended, ElementsAre(0)) << "neither the epoch nor the training has ended";
      if (saves_later) trainer->save(folder.path());
      const auto resumed = made(options_for("ddp", nullptr));
      ASSERT_TRUE(resumed->load(folder.path()));
      EXPECT_EQ(resumed->epoch(), 1);
      resumed->fit(points(), fitting({}, 1));
      EXPECT_FALSE(resumed->is_preempted());
      EXPECT_EQ(values_of(resumed->history()), values_of(straight->history())) << step;
      EXPECT_EQ(train::values_of(resumed->model()), train::values_of(straight->model())) << step;
      trainer->fit(points(), fitting({}, 1));  // and so does another fit in the same process
      EXPECT_FALSE(trainer->is_preempted());
      EXPECT_EQ(trainer->step(), kEpochs * kSteps);
    }
}

// The end of a fit with max_steps is within an epoch, also for a callback that saves at the epoch's end.
TEST(TrainerMidEpoch, ModelCheckpointOfAPartOfAnEpochHasItsPosition) {
  const Folder folder;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
    const auto straight = made(options_for("ddp", group));
    straight->fit(points(), fitting());
    const auto trainer = made(options_for("ddp", group));
    FitOptions part = fitting({every_step(folder.path())});
    part.max_steps = 8;
    trainer->fit(points(), part);
    const auto resumed = made(options_for("ddp", group));
    const auto state = resumed->load(folder.path());
    ASSERT_TRUE(state);
    EXPECT_EQ(state->step, 8);
    std::int64_t steps = 0;
    resumed->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, state->epoch));
    EXPECT_EQ(steps, 10);
    EXPECT_EQ(values_of(resumed->history()), values_of(straight->history()));
    EXPECT_EQ(train::values_of(resumed->model()), train::values_of(straight->model()));
  }));
}

class StopsAfterEpoch : public Callback {
 public:
  void on_step_end(Trainer& trainer, std::int64_t step, const Logs&) override {
    if (step == 8 && trainer.is_first_rank()) trainer.stop();
  }
};

// stop() ends the training after the epoch, also if the training continues in between.
TEST(TrainerMidEpoch, StopIsRememberedWithinTheEpoch) {
  const Folder folder;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
    const auto trainer = made(options_for("ddp", group));
    trainer->fit(points(), fitting({std::make_shared<StopsAfterEpoch>(), every_step(folder.path())}));
    EXPECT_EQ(trainer->step(), 12);
    const auto resumed = made(options_for("ddp", group));
    ASSERT_TRUE(resumed->load(folder.path() + "/step-00000010"));
    resumed->fit(points(), fitting({}, 1));
    EXPECT_EQ(resumed->step(), 12);
  }));
}

TEST(TrainerMidEpoch, AFitWithoutEpochsKeepsThePosition) {
  const Folder folder;
  made(options_for("ddp", nullptr))->fit(points(), fitting({every_step(folder.path())}));
  const auto trainer = made(options_for("ddp", nullptr));
  ASSERT_TRUE(trainer->load(folder.path() + "/step-00000008"));
  FitOptions none = fitting({}, 1);
  none.epochs = 1;
  trainer->fit(points(), none);
  std::int64_t steps = 0;
  trainer->fit(points(), fitting({std::make_shared<CountSteps>(steps)}, 1));
  EXPECT_EQ(steps, 10);
}

TEST(TrainerMidEpoch, OptionsOfItsCallbacksAreChecked) {
  EXPECT_THAT(message_of([] { ModelCheckpoint("x", {.every_steps = -1}); }), HasSubstr("every_steps -1"));
  EXPECT_THAT(message_of([] { ModelCheckpoint("x", {.best_only = true, .every_steps = 5}); }),
              HasSubstr("every_steps 5 with best_only"));
  EXPECT_THAT(message_of([] { Preemption("x", {.every_steps = 0}); }), HasSubstr("every_steps 0"));
  EXPECT_THAT(message_of([] { Preemption("x", {.keep = 0}); }), HasSubstr("keep 0"));
}

}  // namespace
}  // namespace lockstep::train::trainer_mid_epoch
