// A resumed training has the same callbacks, history and position in the data as one that was never interrupted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train::trainer_resume {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Not;
using Callbacks = std::vector<std::shared_ptr<Callback>>;

std::unique_ptr<Trainer> made(const std::string& strategy = "mirrored",
                              const std::shared_ptr<ProcessGroup>& group = nullptr) {
  auto trainer = std::make_unique<Trainer>(make_dense);
  CompileOptions options = classifying(strategy);
  options.strategy_options.group = group;
  trainer->compile(options);
  return trainer;
}

// Two steps per epoch.
const data::Pipeline& points() {
  static const data::Pipeline kPoints = data::Pipeline(Quadrants(64)).cache().shuffle().batch(32);
  return kPoints;
}

FitOptions up_to(std::int64_t epochs, Callbacks callbacks, std::int64_t initial_epoch = 0) {
  return {.epochs = epochs, .initial_epoch = initial_epoch, .callbacks = std::move(callbacks), .progress = false};
}

// "lr" is a logged value that a test can set for each epoch.
std::shared_ptr<Callback> rates(std::vector<float> of_epochs) {
  return std::make_shared<LearningRate>([of_epochs = std::move(of_epochs)](std::int64_t step) {
    return of_epochs[std::min(static_cast<std::size_t>(step / 2), of_epochs.size() - 1)];
  });
}

// Makes one run per epoch, each of which resumes from the checkpoint of the previous one. Returns the last trainer.
std::unique_ptr<Trainer> epoch_by_epoch(const std::string& folder, std::int64_t epochs,
                                        const std::function<Callbacks()>& callbacks) {
  std::unique_ptr<Trainer> trainer;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    trainer = made();
    const auto state = trainer->load(folder);
    EXPECT_EQ(trainer->epoch(), state ? state->epoch : 0);
    const std::int64_t begin = trainer->epoch();
    trainer->fit(points(), up_to(begin + 1, callbacks(), begin));
  }
  return trainer;
}

TEST(TrainerResume, TheBestCheckpointIsNotReplacedByAWorseOne) {
  const Folder folder;
  const CheckpointOptions best{.monitor = "lr", .mode = Mode::kMore, .best_only = true, .keep = 1};
  epoch_by_epoch(folder.path(), 3, [&] {
    return Callbacks{rates({0.09F, 0.03F}), std::make_shared<ModelCheckpoint>(folder.path(), best)};
  });
  EXPECT_THAT(folder.names(), ElementsAre("latest", "step-00000002")) << "epoch 1 is worse";
  epoch_by_epoch(folder.path(), 1, [&] {
    return Callbacks{rates({0, 0.1F}), std::make_shared<ModelCheckpoint>(folder.path(), best)};
  });
  EXPECT_THAT(folder.names(), ElementsAre("latest", "step-00000004")) << "a better epoch is saved";
}

// The checkpoint has the state after the epoch, also of callbacks that come after ModelCheckpoint in the list.
TEST(TrainerResume, APlateauIsCountedAcrossRuns) {
  const ReduceOnPlateauOptions halve{.monitor = "loss", .min_delta = 1e9, .patience = 2, .factor = 0.5F};
  const auto straight = made();
  straight->fit(points(), up_to(5, {std::make_shared<ReduceOnPlateau>(halve)}));
  EXPECT_EQ(straight->strategy().optimizer().lr(), 0.0125F);
  for (const bool saves_first : {true, false}) {
    const Folder folder;
    const auto resumed = epoch_by_epoch(folder.path(), 5, [&] {
      Callbacks callbacks = {std::make_shared<ModelCheckpoint>(folder.path()),
                             std::make_shared<ReduceOnPlateau>(halve)};
      if (!saves_first) std::swap(callbacks[0], callbacks[1]);
      return callbacks;
    });
    EXPECT_EQ(resumed->history().values("lr"), straight->history().values("lr"));
    EXPECT_EQ(resumed->strategy().optimizer().lr(), straight->strategy().optimizer().lr());
    EXPECT_EQ(values_of(resumed->model()), values_of(straight->model()));
  }
}

// fit() goes on while an epoch is saved, and ends when its last epoch is.
TEST(TrainerResume, FromACheckpointThatWasSavedInTheBackgroundHasTheSameBits) {
  const Folder folder;
  const CheckpointOptions background{.keep = 3, .save = {.background = true}};
  const auto straight = made();
  straight->fit(points(), up_to(3, {std::make_shared<ModelCheckpoint>(folder.path(), background)}));
  EXPECT_THAT(folder.names(), ElementsAre("latest", "step-00000002", "step-00000004", "step-00000006"));
  const auto resumed = made();
  const auto state = resumed->load(folder.path() + "/step-00000004");
  ASSERT_TRUE(state);
  resumed->fit(points(), up_to(3, {}, state->epoch));
  EXPECT_EQ(values_of(resumed->model()), values_of(straight->model()));
}

TEST(TrainerResume, EarlyStoppingKeepsItsPatienceAndItsBestWeights) {
  const Folder folder;
  std::shared_ptr<EarlyStopping> stopping;
  const auto callbacks = [&] {
    stopping = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "lr", .mode = Mode::kLess, .patience = 2, .restore_best_weights = true});
    return Callbacks{rates({0.02F, 0.01F, 0.1F}), stopping, std::make_shared<ModelCheckpoint>(folder.path())};
  };
  const auto straight = made();
  EXPECT_EQ(straight->fit(points(), up_to(20, callbacks())).epochs(), 4) << "epochs 2 and 3 are no better than 1";
  for (const std::string& name : folder.names()) std::filesystem::remove_all(folder.path() + "/" + name);
  const auto resumed = epoch_by_epoch(folder.path(), 4, callbacks);
  EXPECT_EQ(stopping->best_epoch(), 1);
  EXPECT_EQ(values_of(resumed->model()), values_of(straight->model())) << "the weights of epoch 1";
  const auto done = made();
  ASSERT_TRUE(done->load(folder.path()));
  EXPECT_EQ(done->fit(points(), up_to(20, callbacks(), done->epoch())).epochs(), 4)
      << "a training that had ended does not continue";
  EXPECT_EQ(done->step(), 8);
  EXPECT_EQ(values_of(done->model()), values_of(straight->model()));
}

// A user-defined callback with numbers that JSON does not have, text and a tensor.
class Diary : public Callback {
 public:
  explicit Diary(std::string name) : name_(std::move(name)) {}
  void on_epoch_end(Trainer&, std::int64_t epoch, const Logs&) override { text += fmt::format("{}\xc3\xa9 \"", epoch); }
  std::string state_name() const override { return name_; }
  CallbackState state() const override {
    return {{{"nan", NAN}, {"low", -INFINITY}, {"third", 1.0 / 3}},
            text,
            {{"a.b", Tensor::full({2, 3}, 0.5F)}, {"none", Tensor::zeros({0})}}};
  }
  void restore(Trainer&, const CallbackState& state) override {
    text = state.text;
    restored = state;
  }
  std::string text;
  std::optional<CallbackState> restored;

 private:
  std::string name_;
};

TEST(TrainerResume, AUserDefinedCallbackKeepsNumbersTextAndTensors) {
  const Folder folder;
  const auto first = std::make_shared<Diary>("Diary"), second = std::make_shared<Diary>("Diary"),
             other = std::make_shared<Diary>("Other");
  second->text = "second: ";
  made()->fit(points(), up_to(2, {first, second, other, std::make_shared<ModelCheckpoint>(folder.path())}));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto trainer = made("ddp", group);
    // Only rank 0 has the folder.
    ASSERT_TRUE(trainer->load(group->rank() == 0 ? folder.path() : folder.path() + "/absent"));
    const auto one = std::make_shared<Diary>("Diary"), two = std::make_shared<Diary>("Diary"),
               added = std::make_shared<Diary>("Added");
    trainer->fit(points(), up_to(3, {one, two, added}, trainer->epoch()));
    EXPECT_EQ(one->text, "0\xc3\xa9 \"1\xc3\xa9 \"2\xc3\xa9 \"");
    EXPECT_EQ(two->text, "second: 0\xc3\xa9 \"1\xc3\xa9 \"2\xc3\xa9 \"") << "distinguished by their order";
    EXPECT_FALSE(added->restored) << "the checkpoint has none of this name";
    ASSERT_TRUE(one->restored);
    EXPECT_TRUE(std::isnan(one->restored->number("nan")));
    EXPECT_EQ(one->restored->number("low"), -INFINITY);
    EXPECT_EQ(one->restored->number("third"), 1.0 / 3);
    EXPECT_THAT(message_of([&] { (void)one->restored->number("fourth"); }), HasSubstr("has no number 'fourth'"));
    ASSERT_EQ(one->restored->tensors.size(), 2U);
    EXPECT_EQ(one->restored->tensors[0].name, "a.b");
    EXPECT_EQ(one->restored->tensors[0].tensor.shape(), (Shape{2, 3}));
    for (const float value : one->restored->tensors[0].tensor.span<float>()) EXPECT_EQ(value, 0.5F);
    EXPECT_EQ(one->restored->tensors[1].tensor.count(), 0);
  }));
}

TEST(TrainerResume, AFitThatBeginsElsewhereResetsItsCallbacks) {
  const Folder folder;
  made()->fit(points(), up_to(2, {std::make_shared<Diary>("Diary"), std::make_shared<ModelCheckpoint>(folder.path())}));
  const auto trainer = made();
  ASSERT_TRUE(trainer->load(folder.path()));
  const auto diary = std::make_shared<Diary>("Diary");
  trainer->fit(points(), up_to(1, {diary}));
  EXPECT_FALSE(diary->restored);
  EXPECT_THAT(trainer->history().numbers(), ElementsAre(0, 1, 0));
}

TEST(TrainerResume, ASaveBetweenFitsHasTheStateOfTheLastOneOrOfWhatWasLoaded) {
  const Folder folder, copy;
  const auto diary = std::make_shared<Diary>("Diary");
  const auto first = made();
  first->fit(points(), up_to(1, {diary}));
  EXPECT_EQ(diary.use_count(), 1) << "a callback may refer to objects that end with the fit";
  first->save(folder.path());
  const auto between = made();
  ASSERT_TRUE(between->load(folder.path()));
  between->save(copy.path());
  const auto last = made();
  ASSERT_TRUE(last->load(copy.path()));
  const auto restored = std::make_shared<Diary>("Diary");
  last->fit(points(), up_to(2, {restored}, 1));
  EXPECT_EQ(restored->text, "0\xc3\xa9 \"1\xc3\xa9 \"");
  EXPECT_EQ(last->history().epochs(), 2);
  last->fit(points(), up_to(2, {std::make_shared<Diary>("Diary")}, 1));  // another fit in the same process starts anew
  last->save(copy.path());
  const auto latest = made();
  ASSERT_TRUE(latest->load(copy.path()));
  latest->fit(points(), up_to(3, {restored}, 2));
  EXPECT_EQ(restored->text, "1\xc3\xa9 \"2\xc3\xa9 \"");
}

TEST(TrainerResume, ACheckpointWithoutATrainersStateLoads) {
  const Folder folder;
  const auto trainer = made();
  save_checkpoint(folder.path(),
                  {.model = trainer->model(), .optimizer = trainer->strategy().optimizer(), .step = 6, .epoch = 3});
  ASSERT_TRUE(trainer->load(folder.path()));
  EXPECT_EQ(trainer->history().epochs(), 0);
  EXPECT_THAT(trainer->fit(points(), up_to(5, {}, 3)).numbers(), ElementsAre(3, 4)) << "earlier epochs are unknown";
}

TEST(TrainerResume, ADamagedTrainersStateIsNamed) {
  const Folder folder;
  const auto trainer = made();
  for (const char* const text :
       {R"({"trainer": 3})", R"({"trainer": 1, "history": {"epochs": [0], "values": [["loss", []]]}, "callbacks": []})",
        R"({"trainer": 1, "history": {"epochs": [], "values": []}, "callbacks": [{"name": "a", "numbers": {},
                                    "text": "", "tensors": ["b"]}]})"}) {
    ProgramState program{text};
    save_checkpoint(
        folder.path(),
        {.model = trainer->model(), .optimizer = trainer->strategy().optimizer(), .epoch = 1, .program = program});
    EXPECT_THAT(message_of([&] { trainer->load(folder.path()); }),
                AllOf(HasSubstr(folder.path()), HasSubstr("trainer's state cannot be read")));
  }
}

// -- epoch numbers

// The step of each event after the first record, which is the file's version; -1 for an event that begins a session.
struct Events {
  std::int64_t first_step = -1;  // of the event with which readers drop older ones
  std::set<std::int64_t> steps;
};
Events events_of(const std::string& folder) {
  Events events;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    for (const std::string& record : testing::records_of(entry.path().string())) {
      const std::string event = record.substr(24 + 18);  // after length and time
      const bool has_step = event.rfind("10", 0) == 0;
      const std::int64_t step = has_step ? std::stol(event.substr(2, 2), nullptr, 16) : 0;  // below 128
      const std::string rest = event.substr(has_step ? 4 : 0);
      if (rest.rfind("3a020801", 0) == 0) events.first_step = step;  // session_log: status START
      if (rest.rfind("2a", 0) == 0) events.steps.insert(step);       // a summary
    }
  return events;
}

class Numbers : public Callback {
 public:
  void on_epoch_begin(Trainer& trainer, std::int64_t epoch) override {
    seen.push_back(epoch);
    EXPECT_EQ(trainer.epoch(), epoch) << "number of completed epochs";
  }
  void on_epoch_end(Trainer&, std::int64_t epoch, const Logs&) override { EXPECT_EQ(epoch, seen.back()); }
  void on_checkpoint(Trainer& trainer, std::int64_t epoch, const Logs&) override {
    EXPECT_EQ(epoch, seen.back());
    EXPECT_EQ(trainer.history().numbers().back(), epoch);
  }
  std::vector<std::int64_t> seen;
};

TEST(TrainerResume, AnEpochHasOneNumberInCallbacksHistoryLogAndTensorBoard) {
  const Folder folder;
  const std::string checkpoints = folder.path() + "/ckpt";
  made()->fit(points(), up_to(2, {std::make_shared<ModelCheckpoint>(checkpoints),
                                  std::make_shared<TensorBoard>(folder.path() + "/first")}));
  const Events first = events_of(folder.path() + "/first");
  EXPECT_EQ(first.first_step, 0);
  EXPECT_THAT(first.steps, ElementsAre(0, 1));
  const auto trainer = made();
  ASSERT_TRUE(trainer->load(checkpoints));
  const auto numbers = std::make_shared<Numbers>();
  FitOptions rest = up_to(4, {numbers, std::make_shared<TensorBoard>(folder.path() + "/second")}, trainer->epoch());
  rest.progress = true;
  ::testing::internal::CaptureStdout();
  trainer->fit(points(), rest);
  const std::string log = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(numbers->seen, ElementsAre(2, 3));
  EXPECT_THAT(log, AllOf(HasSubstr("Epoch 3/4\n"), HasSubstr("Epoch 4/4\n"), HasSubstr("ms/step - loss: "),
                         Not(HasSubstr("Epoch 2/4"))));
  EXPECT_THAT(trainer->history().numbers(), ElementsAre(0, 1, 2, 3)) << "it includes those before the checkpoint";
  EXPECT_THAT(trainer->history().text(), AllOf(HasSubstr("\n    0  "), HasSubstr("\n    3  ")));
  const Events second = events_of(folder.path() + "/second");
  EXPECT_EQ(second.first_step, 2);
  EXPECT_THAT(second.steps, ElementsAre(2, 3));
  const auto straight = made();
  EXPECT_EQ(straight->fit(points(), up_to(4, {})).values("loss"), trainer->history().values("loss"));
}

// The first run dies two epochs after its last checkpoint.
TEST(TrainerResume, TensorBoardDropsEpochsThatALaterRunRepeats) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "LOCKSTEP_TEST_PYTHON names no python with tensorboard";
  if (std::system(fmt::format("{} -c 'import tensorboard' 2>/dev/null", python).c_str()) != 0)
    GTEST_SKIP() << python << " has no package tensorboard: .ci/requirements.txt names it";
  const Folder folder;
  const std::string checkpoints = folder.path() + "/ckpt", events = folder.path() + "/events";
  const CheckpointOptions every_other{.every_epochs = 2};
  made()->fit(points(), up_to(3, {std::make_shared<ModelCheckpoint>(checkpoints, every_other),
                                  std::make_shared<TensorBoard>(events)}));
  const auto trainer = made();
  ASSERT_TRUE(trainer->load(checkpoints));
  ASSERT_EQ(trainer->epoch(), 2);
  trainer->set_lr(0.01F);  // distinguishes the second epoch 2 from the first
  trainer->fit(points(), up_to(4, {std::make_shared<TensorBoard>(events)}, trainer->epoch()));
  std::ofstream(folder.path() + "/read.py") << R"(
import sys
from tensorboard.backend.event_processing import event_accumulator
run = event_accumulator.EventAccumulator(sys.argv[1])
run.Reload()
print([(s.step, round(s.value, 4)) for s in run.Scalars('lr')])
assert [(s.step, round(s.value, 4)) for s in run.Scalars('lr')] == [(0, 0.05), (1, 0.05), (2, 0.01), (3, 0.01)]
)";
  EXPECT_EQ(std::system(fmt::format("{} {}/read.py {}", python, folder.path(), events).c_str()), 0);
}

// -- the position in the data

// Sample i is i.
class Counted : public data::Dataset {
 public:
  explicit Counted(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  data::Sample get(std::int64_t index, std::int64_t) const override {
    return {Tensor::full({1}, static_cast<float>(index)), data::scalar<std::int64_t>(index)};
  }

 private:
  std::int64_t size_;
};

// Returns the samples of all ranks, step by step, of epochs `begin` to `end`, sorted within each step.
std::vector<std::int64_t> trained(const data::Pipeline& set, std::int64_t begin, std::int64_t end,
                                  std::int64_t steps_per_epoch) {
  std::mutex mutex;
  std::vector<std::vector<std::int64_t>> steps;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    std::size_t step = 0;
    Trainer trainer([] { return std::make_unique<nn::Linear>(1, 1); });
    trainer.compile({.optimizer = classifying("ddp").optimizer,
                     .loss =
                         [&](const Tensor& outputs, const Tensor& targets) {
                           const std::lock_guard lock(mutex);
                           if (steps.size() <= step) steps.resize(step + 1);
                           const auto numbers = targets.span<std::int64_t>();
                           steps[step].insert(steps[step].end(), numbers.begin(), numbers.end());
                           ++step;
                           return mean(outputs);
                         },
                     .strategy_options = {.group = group}});
    trainer.fit(set, {.epochs = end, .initial_epoch = begin, .steps_per_epoch = steps_per_epoch, .progress = false});
  }));
  std::vector<std::int64_t> all;
  for (std::vector<std::int64_t>& step : steps) {
    std::sort(step.begin(), step.end());
    all.insert(all.end(), step.begin(), step.end());
  }
  return all;
}

TEST(StepsPerEpoch, AnEpochContinuesWhereThePreviousOneEnded) {
  const auto in_order = data::Pipeline(Counted(26)).batch(4, {.drop_remainder = true});  // six full batches
  std::vector<std::int64_t> expected;
  for (int pass = 0; pass < 2; ++pass)
    for (std::int64_t i = 0; i < 24; ++i) expected.push_back(i);
  EXPECT_EQ(trained(in_order, 0, 3, 4), expected) << "three epochs of four steps are two passes";
  EXPECT_EQ(trained(in_order, 0, 2, 0), expected);
}

TEST(StepsPerEpoch, EachPassHasItsOwnOrderAndAResumedRunContinuesInIt) {
  const auto shuffled = data::Pipeline(Counted(24)).shuffle(0, 3).batch(4);
  const std::vector<std::int64_t> all = trained(shuffled, 0, 3, 4);
  EXPECT_EQ(all, trained(shuffled, 0, 2, 0)) << "the passes of epochs over the entire set";
  std::vector<std::int64_t> rest = trained(shuffled, 1, 3, 4);
  EXPECT_EQ(rest, std::vector<std::int64_t>(all.begin() + 16, all.end()));
}

}  // namespace
}  // namespace lockstep::train::trainer_resume
