// A mistake in one rank's arguments is an error on all ranks. None waits for another, and the group and its Trainer
// stay usable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "lockstep/train/trainer.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/trainer_parts.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3, kOdd = 1;

FitOptions one_epoch() { return {.epochs = 1, .progress = false}; }
data::Pipeline good() { return data::Pipeline(Quadrants(48)).batch(12); }

// Runs `mistake` on all ranks and passes whether this is the odd one. Returns the exception texts. All ranks then
// train.
std::vector<std::string> with_one_mistake(const std::function<void(Trainer& trainer, bool is_odd)>& mistake) {
  std::vector<std::string> messages(kRanks);
  testing::expect_all_well(testing::run_ranks(kRanks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    Trainer trainer(make_dense);
    CompileOptions options = classifying("ddp");
    options.strategy_options.group = group;
    trainer.compile(options);
    messages[static_cast<std::size_t>(group->rank())] = message_of([&] { mistake(trainer, group->rank() == kOdd); });
    EXPECT_EQ(trainer.fit(good(), one_epoch()).epochs(), 1) << "the trainer stays usable";
  }));
  return messages;
}

TEST(TrainerMistakes, OfCompileOnOneRank) {
  const auto messages_of = [](const std::function<void(CompileOptions&)>& change) {
    std::vector<std::string> messages(kRanks);
    testing::expect_all_well(testing::run_ranks(kRanks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      Trainer trainer(make_dense);
      CompileOptions options = classifying("ddp");
      options.strategy_options.group = group;
      CompileOptions odd = options;
      change(odd);
      messages[static_cast<std::size_t>(group->rank())] =
          message_of([&] { trainer.compile(group->rank() == kOdd ? odd : options); });
      trainer.compile(options);
      EXPECT_EQ(trainer.fit(good(), one_epoch()).epochs(), 1);
    }));
    return messages;
  };
  EXPECT_THAT(messages_of([](auto& options) { options.strategy = "horovod"; }),
              Each(HasSubstr("unknown strategy 'horovod'")));
  EXPECT_THAT(messages_of([](auto& options) { options.loss = {}; }),
              Each(HasSubstr(".optimizer and .loss are needed")));
  EXPECT_THAT(messages_of([](auto& options) { options.metrics.emplace_back("loss", Accuracy()); }),
              Each(HasSubstr("'loss' is taken")));
  EXPECT_THAT(messages_of([](auto& options) { options.strategy_options.devices = {&cpu_device()}; }),
              Each(HasSubstr(".devices is for strategies with one process")));
  const auto throws = [](auto&&) -> std::unique_ptr<optim::Optimizer> { throw FileError("no rate was found"); };
  EXPECT_THAT(messages_of([&](auto& options) { options.optimizer = throws; }), Each(HasSubstr("no rate was found")));
}

TEST(TrainerMistakes, OfFitOnOneRank) {
  const auto fit = [](const std::function<void(std::optional<data::Pipeline> & set, FitOptions & options)>& change) {
    return with_one_mistake([&](Trainer& trainer, bool is_odd) {
      std::optional<data::Pipeline> set = good();
      FitOptions options = one_epoch();
      if (is_odd) change(set, options);
      trainer.fit(*set, options);
    });
  };
  EXPECT_THAT(fit([](auto& set, auto&) { set = data::Pipeline(Quadrants(48)).batch(16); }),
              Each(HasSubstr("rank 1: a batch of 16 samples cannot be split evenly among 3 devices")));
  EXPECT_THAT(fit([](auto& set, auto&) { set = data::Pipeline(Quadrants(60)).batch(12); }),
              Each(AllOf(HasSubstr("Trainer::fit: the ranks gave different sets or options"),
                         HasSubstr("a set of 60 samples"), HasSubstr("a set of 48 samples"))));
  EXPECT_THAT(fit([](auto& set, auto&) { set = Quadrants(0); }), Each(HasSubstr("rank 1: the data set is empty")));
  EXPECT_THAT(fit([](auto&, auto& options) { options.epochs = 2; }), Each(HasSubstr("epochs 0 to 2")));
  EXPECT_THAT(fit([](auto& set, auto&) { set = data::Pipeline(Quadrants(48)).shuffle(0, 9).batch(12); }),
              Each(HasSubstr("a set of 48 samples, shuffled with seed 9, in batches of 12")));
  EXPECT_THAT(fit([](auto&, auto& options) { options.drop_remainder = true; }), Each(HasSubstr("full batches only")));
  EXPECT_THAT(fit([](auto&, auto& options) { options.log_every = 0; }),
              Each(HasSubstr("log_every 0 must be positive")));
  EXPECT_THAT(fit([](auto&, auto& options) { options.validation = good(); }),
              Each(HasSubstr("for validation a set of 48 samples")));
}

TEST(TrainerMistakes, OfEvaluationOnOneRank) {
  const auto evaluate = [](const data::Pipeline& odd) {
    return with_one_mistake([&](Trainer& trainer, bool is_odd) { trainer.evaluate(is_odd ? odd : good()); });
  };
  EXPECT_THAT(evaluate(Quadrants(0)), Each(HasSubstr("Trainer::evaluate: rank 1: the data set is empty")));
  EXPECT_THAT(evaluate(data::Pipeline(Quadrants(24)).batch(12)),
              Each(HasSubstr("Trainer::evaluate: the ranks gave different sets")));
  EXPECT_THAT(
      with_one_mistake([](Trainer& trainer, bool is_odd) { trainer.predict(good(), {.batch_size = is_odd ? -1 : 0}); }),
      Each(HasSubstr("batch_size -1 must not be negative")));
}

}  // namespace
}  // namespace lockstep::train
