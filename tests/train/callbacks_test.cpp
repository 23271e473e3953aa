// Trainer callbacks and its history.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A user-defined callback that sets the loss of each epoch to the test's values.
class Follow : public Callback {
 public:
  explicit Follow(std::function<void(Trainer&, std::int64_t)> at_epoch) : at_epoch_(std::move(at_epoch)) {}
  void on_epoch_end(Trainer& trainer, std::int64_t epoch, const Logs&) override { at_epoch_(trainer, epoch); }

 private:
  std::function<void(Trainer&, std::int64_t)> at_epoch_;
};

std::string text_of_only_file(const std::string& folder) {
  std::string text;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

std::unique_ptr<Trainer> made(const std::string& strategy, const std::shared_ptr<ProcessGroup>& group = nullptr) {
  auto trainer = std::make_unique<Trainer>(make_dense);
  CompileOptions options = classifying(strategy);
  options.strategy_options.group = group;
  trainer->compile(options);
  return trainer;
}

const data::Pipeline& points() {
  static const data::Pipeline kPoints = data::Pipeline(Quadrants(64)).cache().shuffle().batch(32);
  return kPoints;
}

FitOptions epochs_with(std::int64_t epochs, std::vector<std::shared_ptr<Callback>> callbacks) {
  return {.epochs = epochs,
          .validation = data::Pipeline(Quadrants(20, 9)).batch(16),
          .callbacks = std::move(callbacks),
          .progress = false};
}

TEST(Callbacks, AResumedTrainingComesToTheSameWeights) {
  for (const std::string& strategy : testing::strategies_of_one_process()) {
    SCOPED_TRACE(strategy);
    const testing::Folder folder;
    const auto straight = made(strategy);
    straight->fit(points(), epochs_with(4, {}));
    const auto first = made(strategy);
    first->fit(points(), epochs_with(2, {std::make_shared<ModelCheckpoint>(folder.path())}));
    const auto second = made(strategy);
    const auto state = second->load(folder.path());
    ASSERT_TRUE(state);
    EXPECT_EQ(state->epoch, 2);
    EXPECT_EQ(second->step(), 4);
    FitOptions rest = epochs_with(4, {});
    rest.initial_epoch = second->epoch();
    second->fit(points(), rest);
    EXPECT_EQ(values_of(second->model()), values_of(straight->model()));
  }
}

TEST(Callbacks, RanksResumeFromACheckpointOfOneProcess) {
  const testing::Folder folder;
  const auto straight = made("mirrored");
  straight->fit(points(), epochs_with(3, {}));
  made("mirrored")->fit(points(), epochs_with(2, {std::make_shared<ModelCheckpoint>(folder.path())}));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto resumed = made("ddp", group);
    ASSERT_TRUE(resumed->load(folder.path()));
    FitOptions rest = epochs_with(3, {});
    rest.initial_epoch = resumed->epoch();
    resumed->fit(points(), rest);
    const std::vector<float> expected = values_of(straight->model()), weights = values_of(resumed->model());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(weights[i], expected[i], 1e-5F);
  }));
}

TEST(Callbacks, CheckpointsOnlyOfTheBestEpochs) {
  const testing::Folder folder;
  const auto trainer = made("mirrored");
  // "lr" is a logged value that a test can set: it falls, then rises.
  const auto rates = std::make_shared<LearningRate>(
      [](std::int64_t step) { return step < 4 ? 0.01F / static_cast<float>(1 + step) : 0.5F; });
  const CheckpointOptions best{.monitor = "lr", .mode = Mode::kLess, .best_only = true, .keep = 5};
  trainer->fit(points(), epochs_with(4, {rates, std::make_shared<ModelCheckpoint>(folder.path(), best)}));
  EXPECT_THAT(folder.names(), ElementsAre("latest", "step-00000002", "step-00000004"));
}

TEST(Callbacks, EarlyStoppingWaitsAndRestoresTheBestWeights) {
  const auto trainer = made("mirrored");
  std::vector<float> of_best;
  const auto keep = std::make_shared<Follow>([&](Trainer& each, std::int64_t epoch) {
    if (epoch == 1) of_best = values_of(each.model());
  });
  // The best epoch is 1; later ones are no better.
  const auto rates = std::make_shared<LearningRate>(
      [](std::int64_t step) { return step < 4 ? 0.02F / static_cast<float>(1 + step) : 0.1F; });
  const auto stopping = std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.monitor = "lr", .mode = Mode::kLess, .patience = 2, .restore_best_weights = true});
  const History& history = trainer->fit(points(), epochs_with(20, {rates, keep, stopping}));
  EXPECT_EQ(history.epochs(), 4) << "epochs 2 and 3 are no better";
  EXPECT_EQ(stopping->best_epoch(), 1);
  EXPECT_EQ(values_of(trainer->model()), of_best);
  // All replicas have the best weights, so the next step is the same on all.
  const auto before = values_of(trainer->model());
  trainer->set_lr(0);
  trainer->strategy().step(Tensor::zeros({4, 2}), Tensor::zeros({4}, DType::kInt64));
  EXPECT_EQ(values_of(trainer->model()), before);
}

class StopAtOnce : public Callback {
 public:
  void on_train_begin(Trainer& trainer) override { trainer.stop(); }
};

TEST(Callbacks, ARankThatStopsBeforeTheFirstStepStopsAll) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [](std::shared_ptr<ProcessGroup> group) {
    const auto trainer = made("ddp", group);
    std::vector<std::shared_ptr<Callback>> callbacks;
    if (group->rank() == 1) callbacks.push_back(std::make_shared<StopAtOnce>());
    trainer->fit(points(), epochs_with(2, callbacks));
    EXPECT_EQ(trainer->step(), 0);
  }));
}

TEST(Callbacks, ReduceOnPlateauLowersTheRateOfAllReplicas) {
  const auto trainer = made("towers");
  // The value never improves by that much.
  const auto plateau = std::make_shared<ReduceOnPlateau>(
      ReduceOnPlateauOptions{.monitor = "loss", .min_delta = 1e9, .patience = 1, .factor = 0.5F, .min_lr = 0.02F});
  const History& history = trainer->fit(points(), epochs_with(4, {plateau}));
  EXPECT_THAT(history.values("lr"), ElementsAre(0.05F, 0.05F, 0.025F, 0.02F));
  // A second fit starts a new count: its first epoch is the best so far.
  EXPECT_THAT(trainer->fit(points(), epochs_with(2, {plateau})).values("lr"),
              ElementsAre(0.05F, 0.05F, 0.025F, 0.02F, 0.02F, 0.02F));
  trainer->set_lr(1);
  EXPECT_EQ(trainer->fit(points(), epochs_with(1, {plateau})).values("lr").back(), 1);
  EXPECT_EQ(trainer->strategy().optimizer().lr(), 1) << "its only epoch is the best";
  EXPECT_THAT(message_of([] { ReduceOnPlateau({.factor = 1}); }), HasSubstr("factor 1 must be between 0 and 1"));
}

TEST(Callbacks, ReduceOnPlateauNeverRaisesARate) {
  const auto trainer = made("towers");
  trainer->set_lr(1e-6F);
  const auto plateau = std::make_shared<ReduceOnPlateau>(
      ReduceOnPlateauOptions{.monitor = "loss", .min_delta = 1e9, .patience = 1, .min_lr = 1e-3F});
  trainer->fit(points(), epochs_with(3, {plateau}));
  EXPECT_EQ(trainer->strategy().optimizer().lr(), 1e-6F) << "it is already below min_lr";
}

TEST(Callbacks, TensorBoardHasEachValueOfTrainingAndValidation) {
  const testing::Folder folder;
  made("mirrored")->fit(points(), epochs_with(2, {std::make_shared<TensorBoard>(folder.path() + "/run")}));
  const std::string events = text_of_only_file(folder.path() + "/run");
  for (const char* const tag :
       {"loss/train", "loss/validation", "accuracy/train", "accuracy/validation", "top2/validation", "lr"})
    EXPECT_THAT(events, HasSubstr(tag));
}

TEST(Callbacks, AFolderThatCannotBeWrittenIsAnErrorOnAllRanks) {
  const testing::Folder folder;
  std::ofstream(folder.path() + "/file") << "not a folder";
  for (const bool events : {true, false}) {
    const std::string below = folder.path() + "/file/below";
    const auto failures = testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      std::vector<std::shared_ptr<Callback>> callbacks;
      if (events)
        callbacks.push_back(std::make_shared<TensorBoard>(below));
      else
        callbacks.push_back(std::make_shared<ModelCheckpoint>(below));
      made("ddp", group)->fit(points(), epochs_with(1, std::move(callbacks)));
    });
    for (const std::string& failure : failures) EXPECT_THAT(failure, HasSubstr(below));
  }
}

TEST(Callbacks, ARankThatStopsOrFailsEndsTheOthers) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto stop = std::make_shared<Follow>([&](Trainer& trainer, std::int64_t epoch) {
      if (group->rank() == 1 && epoch == 1) trainer.stop();
    });
    EXPECT_EQ(made("ddp", group)->fit(points(), epochs_with(9, {stop})).epochs(), 2);
  }));
  const auto failures = testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto fail = std::make_shared<Follow>([&](Trainer&, std::int64_t) {
      if (group->rank() == 1) throw FileError("the disk of rank 1 is full");
    });
    made("ddp", group)->fit(points(), epochs_with(9, {fail}));
  });
  for (const std::string& failure : failures) EXPECT_THAT(failure, HasSubstr("the disk of rank 1 is full"));
}

TEST(Callbacks, SetsOfDifferentSizesAreAnErrorBeforeTheFirstEpoch) {
  for (const char* const strategy : {"ddp", "zero"}) {
    const auto failures = testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const std::int64_t samples = group->rank() == 0 ? 96 : 64;
      made(strategy, group)->fit(data::Pipeline(Quadrants(samples)).batch(32), epochs_with(1, {}));
    });
    for (const std::string& failure : failures)
      EXPECT_THAT(failure,
                  AllOf(HasSubstr("rank 1 has a set of 64 samples"), HasSubstr("rank 0 has a set of 96 samples")));
  }
}

TEST(Callbacks, NameTheValuesThatThereAre) {
  const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_acc"});
  EXPECT_THAT(message_of([&] { made("mirrored")->fit(points(), epochs_with(1, {stopping})); }),
              HasSubstr("EarlyStopping: there is no value 'val_acc', only loss, accuracy, top2, val_loss, "
                        "val_accuracy, val_top2, lr"));
  EXPECT_THAT(message_of([&] { made("mirrored")->fit(points(), epochs_with(1, {nullptr})); }),
              HasSubstr("one of the callbacks is null"));
}

TEST(Monitor, KnowsWhichWayIsBetter) {
  Monitor accuracy("val_accuracy", Mode::kAuto), loss("val_loss", Mode::kAuto, 0.1), more("loss", Mode::kMore);
  EXPECT_TRUE(accuracy.improves({{"val_accuracy", 0.5}}, "test"));
  EXPECT_FALSE(accuracy.improves({{"val_accuracy", 0.4}}, "test"));
  EXPECT_TRUE(loss.improves({{"val_loss", 1}}, "test"));
  EXPECT_FALSE(loss.improves({{"val_loss", 0.95}}, "test")) << "less than min_delta";
  EXPECT_FALSE(loss.improves({{"val_loss", kNan}}, "test"));
  EXPECT_TRUE(more.improves({{"loss", 1}}, "test"));
  EXPECT_TRUE(more.improves({{"loss", 2}}, "test"));
  for (const char* const less : {"loss", "val_loss", "error", "val_mse", "mae", "val_rmse"})
    for (const char* const name : {less, "val_accuracy"}) {
      Monitor monitor(name, Mode::kAuto);
      monitor.improves({{name, 0.5}}, "test");
      EXPECT_EQ(monitor.improves({{name, 0.6}}, "test"), name != less) << name;
    }
}

TEST(Monitor, AsksForTheModeWhereItDoesNotKnow) {
  for (const char* const name :
       {"val_iou", "val_dice", "val_map", "val_ndcg", "val_r2", "val_bleu", "val_psnr", "val_inaccuracy",
        "val_topology_loss", "val_f1_loss", "val_top1_error", "val_vacc_error", "top5", "lr", "val_"}) {
    Monitor monitor(name, Mode::kAuto);
    EXPECT_THAT(message_of([&] {
                  monitor.improves({{name, 0.5}}, "Test");
                }),
                HasSubstr(fmt::format(
                    "Test: neither the name '{}' nor a metric says whether more or less is better: set .mode", name)));
    Monitor given(name, Mode::kMore);
    EXPECT_TRUE(given.improves({{name, 0.5}}, "test"));
    EXPECT_TRUE(given.improves({{name, 0.6}}, "test"));
  }
}

// A metric with a value that the test sets.
class Fixed : public Metric {
 public:
  explicit Fixed(Mode better) : better_(better) {}
  void update(const Tensor&, const Tensor&) override {}
  std::span<std::int64_t> counts() override { return counts_; }
  Mode better() const override { return better_; }
  double value() const { return 0.5; }

 private:
  Mode better_;
  std::int64_t counts_[1] = {};
};

TEST(Monitor, AMetricKnowsBetterThanItsName) {
  Trainer trainer(make_dense);
  CompileOptions options = classifying("mirrored");
  const auto nothing = [](const Tensor& outputs, const Tensor&) {
    return std::vector<float>(static_cast<std::size_t>(outputs.shape()[0]));
  };
  options.metrics = {{"hits", TopK(2)},
                     {"wer", Mean(nothing, Mode::kLess)},
                     {"accuracy", Fixed(Mode::kLess)},
                     {"bleu", Fixed(Mode::kAuto)}};
  trainer.compile(options);
  EXPECT_EQ(trainer.mode_of("val_hits"), Mode::kMore);
  EXPECT_EQ(trainer.mode_of("wer"), Mode::kLess);
  EXPECT_EQ(trainer.mode_of("val_accuracy"), Mode::kLess);
  EXPECT_EQ(trainer.mode_of("val_bleu"), Mode::kAuto);
  EXPECT_EQ(trainer.mode_of("val_loss"), Mode::kLess);
  Monitor hits("val_hits", Mode::kAuto), wer("val_wer", Mode::kAuto), accuracy("accuracy", Mode::kAuto),
      bleu("val_bleu", Mode::kAuto);
  hits.follow(trainer, "test"), wer.follow(trainer, "test"), accuracy.follow(trainer, "test");
  EXPECT_EQ(hits.text() + "; " + wer.text() + "; " + accuracy.text(), "val_hits, more; val_wer, less; accuracy, less");
  EXPECT_THAT(message_of([&] { bleu.follow(trainer, "test"); }), HasSubstr("neither the name 'val_bleu' nor a metric"));
}

TEST(Monitor, AModeThatIsMissingIsAnErrorOnAllRanksBeforeTheTraining) {
  const CheckpointOptions best{.monitor = "val_top2_error", .best_only = true};
  const std::vector<std::shared_ptr<Callback>> mistakes = {
      std::make_shared<ModelCheckpoint>("never-made", best),
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_iou"}),
      std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.monitor = "val_iou"})};
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto trainer = made("ddp", group);
    for (const auto& mistake : mistakes) {
      std::vector<std::shared_ptr<Callback>> callbacks;
      if (group->rank() == 1) callbacks.push_back(mistake);  // a mistake on one rank
      EXPECT_THAT(message_of([&] { trainer->fit(points(), epochs_with(1, callbacks)); }),
                  HasSubstr("set .mode = Mode::kMore or"));
    }
    EXPECT_EQ(trainer->step(), 0);
    EXPECT_EQ(trainer->fit(points(), epochs_with(1, {})).epochs(), 1) << "the group stays usable";
  }));
}

// -- History

TEST(History, KeepsValuesByEpochAndPlotsThem) {
  History history;
  EXPECT_THAT(message_of([&] { history.svg(); }), HasSubstr("no epoch has ended"));
  history.add({{"loss", 2}, {"accuracy", 0.25}});
  history.add({{"loss", 1}, {"accuracy", 0.5}, {"val_loss", 1.5}, {"a<b", 1}});
  EXPECT_EQ(history.epochs(), 2);
  EXPECT_THAT(history.numbers(), ElementsAre(0, 1));
  EXPECT_THAT(history.values("loss"), ElementsAre(2, 1));
  EXPECT_TRUE(std::isnan(history.values("val_loss")[0])) << "epoch 0 had none";
  EXPECT_EQ(history.values("val_loss")[1], 1.5);
  EXPECT_THAT(message_of([&] { (void)history.values("los"); }),
              HasSubstr("there is no value 'los', only loss, accuracy, val_loss, a<b"));
  EXPECT_EQ(history.text().substr(0, history.text().find('\n')), "epoch      loss  accuracy  val_loss       a<b");
  EXPECT_THAT(history.text(), HasSubstr("\n    1    1.0000    0.5000    1.5000    1.0000\n"));
  const std::string svg = history.svg();
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg "), HasSubstr(">loss</text>"), HasSubstr(">val_loss</text>"),
                         HasSubstr(">a&lt;b</text>")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  const auto count = [&](const std::string& word) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<rect"), 4U) << "the background and three panels: loss with val_loss, accuracy, a<b";
  const testing::Folder folder;
  history.plot(folder.path() + "/history.svg");
  EXPECT_EQ(text_of_only_file(folder.path()), svg);
  EXPECT_THAT(message_of([&] { history.plot(folder.path() + "/none/history.svg"); }),
              HasSubstr("none/history.svg: the plot cannot be written"));
}

}  // namespace
}  // namespace lockstep::train
