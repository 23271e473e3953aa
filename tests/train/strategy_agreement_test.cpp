// make_strategy() in a group: ranks that ask for different strategies, or of which one fails, all throw, and the group
// goes on. Averages of weights on demand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "tests/ddp/ranks.h"
#include "tests/faults/child.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"
#include "tests/train/ddp_outcome.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3, kOdd = 1;
using Group = std::shared_ptr<ProcessGroup>;

// Returns the message that each rank throws in `make`, which gets whether this is the odd rank. The group then trains
// by ddp.
std::vector<std::string> messages_of(const std::function<void(bool is_odd, const Group& group)>& make) {
  std::vector<std::string> messages(kRanks);
  testing::expect_all_well(testing::run_ranks(kRanks, "threads", [&](Group group) {
    messages[static_cast<std::size_t>(group->rank())] = message_of([&] { make(group->rank() == kOdd, group); });
    const auto strategy = make_strategy("ddp", training_of_net(), {.group = group});
    EXPECT_GT(step_on_own_samples(*strategy, *group, 0), 0);
  }));
  return messages;
}

TEST(StrategyAgreement, RanksThatAskForDifferentOnesAllThrow) {
  const std::pair<const char*, const char*> cases[] = {{"ddp", "zero"},         {"ddp", "mirrored"},
                                                       {"mirrored", "ddp"},     {"ddp", "horovod"},
                                                       {"mirrored", "horovod"}, {"parameter_server", "ddp"}};
  for (const auto& [usual, odd] : cases)
    EXPECT_THAT(messages_of([usual = usual, odd = odd](bool is_odd, const Group& group) {
                  make_strategy(is_odd ? odd : usual, training_of_net(), {.group = group});
                }),
                Each(AllOf(HasSubstr("make_strategy: the ranks ask for different strategies"),
                           HasSubstr(fmt::format("rank 1 has strategy '{}'", odd)),
                           HasSubstr(fmt::format("rank 0 has strategy '{}'", usual)))))
        << usual << " and " << odd;
}

TEST(StrategyAgreement, AnUnknownOneIsNamedOnAllRanks) {
  EXPECT_THAT(
      messages_of([](bool, const Group& group) { make_strategy("horovod", training_of_net(), {.group = group}); }),
      Each(HasSubstr("unknown strategy 'horovod'")));
}

TEST(StrategyAgreement, AnExceptionOfAnyTypeIsToldToAllRanks) {
  const auto messages = messages_of([](bool is_odd, const Group& group) {
    Training training = training_of_net();
    if (is_odd) training.model = []() -> std::unique_ptr<nn::Module> { throw 42; };
    try {
      make_strategy("ddp", training, {.group = group});
    } catch (int number) {
      throw Error("a number of {}", number);
    }
  });
  EXPECT_EQ(messages[kOdd], "a number of 42");
  EXPECT_THAT(messages[0], HasSubstr("rank 1: an exception that is not a std::exception"));
  EXPECT_THAT(messages[2], HasSubstr("rank 1: an exception that is not a std::exception"));
}

// By real ranks, which have a default group.
std::string output_of(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {LOCKSTEP_LOCKRUN, "--no-fold", "-n", "2", LOCKSTEP_STRATEGY_NAMES_RANK};
  command.insert(command.end(), arguments.begin(), arguments.end());
  testing::Child job(command);
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.errors();
  return job.output();
}

TEST(StrategyAgreement, HoldsInTheDefaultGroup) {
  EXPECT_THAT(output_of({"together", "mirrored", "towers"}),
              AllOf(HasSubstr("rank 0: make_strategy: the ranks ask for different"),
                    HasSubstr("rank 1: make_strategy: the ranks ask for")));
  EXPECT_THAT(output_of({"together", "", ""}),
              AllOf(HasSubstr("rank 0: make_strategy: which one?"), HasSubstr("rank 1: make_strategy: which")));
  EXPECT_THAT(output_of({"together", "ddp", ""}), HasSubstr("rank 1: make_strategy: the ranks ask for different"));
}

TEST(StrategyAgreement, AStrategyOfOneProcessIsRefusedInAJobOfSeveralRanks) {
  for (const std::string& name : testing::strategies_of_one_process(testing::Stages::kToo)) {
    const std::string text =
        fmt::format("strategy '{}' drives all devices from one process, and this job has 2 ranks", name);
    EXPECT_THAT(output_of({"together", name, name}), AllOf(HasSubstr("rank 0: make_strategy: rank 0: " + text),
                                                           HasSubstr("rank 1: make_strategy: rank 1: " + text),
                                                           HasSubstr(".group = group->split(group->rank())")));
  }
  EXPECT_THAT(output_of({"together", "deploy", "deploy"}),
              HasSubstr("rank 1: deploy: rank 1: this drives all devices from one process"));
  EXPECT_THAT(output_of({"apart", "deploy", "deploy"}),
              AllOf(HasSubstr("rank 0: deploy"), HasSubstr("rank 1: deploy")));
}

TEST(StrategyAgreement, IsNotAskedOfRanksWithGroupsOfTheirOwn) {
  EXPECT_THAT(output_of({"apart", "mirrored", "towers"}),
              AllOf(HasSubstr("rank 0: mirrored"), HasSubstr("rank 1: towers")));
}

TEST(StrategyAgreement, ModelParallelOverRanksAndInOneProcessAreTwo) {
  const std::string text =
      "rank 1 has strategy 'model_parallel' at position 0, rank 0 has strategy 'model_parallel' with a .group";
  EXPECT_THAT(output_of({"half", "model_parallel", "model_parallel"}),
              AllOf(HasSubstr("rank 0: make_strategy: the ranks ask for different strategies: " + text),
                    HasSubstr("rank 1: make_strategy: the ranks ask for different strategies: " + text)));
  EXPECT_THAT(messages_of([](bool is_odd, const Group& group) {
                make_strategy(is_odd ? "zero" : "model_parallel", training_of_net(), {.group = group});
              }),
              Each(HasSubstr("rank 0 has strategy 'model_parallel' with a .group")));
}

Training without_momentum() {
  Training training = training_of_net();
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.05F});
  };
  return training;
}

// A run that averages and goes on has the bits of one that loads the averaged weights.
TEST(LocalSgd, AveragesOnDemandAndGoesOnAsOneThatLoads) {
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](Group group) {
    const StrategyOptions options = {.group = group, .average_period = 3};
    const auto first = make_strategy("local_sgd", without_momentum(), options);
    for (int step = 0; step < 5; ++step) step_on_own_samples(*first, *group, step);
    const auto is_equal = [&](Strategy& strategy) {
      return hash_of(strategy.model().named_parameters()) ==
             group->broadcast_text(hash_of(strategy.model().named_parameters()), 0, {});
    };
    const std::uint64_t sent = first->traffic()[0].sent;
    EXPECT_EQ(is_equal(*first), group->rank() == 0) << "ranks were apart";
    first->as<WeightAverager>()->average_weights();
    EXPECT_TRUE(is_equal(*first));
    EXPECT_GT(first->traffic()[0].sent, sent);

    const auto resumed = make_strategy("local_sgd", without_momentum(), options);
    resumed->model().load_state_dict(first->model().state_dict());
    for (int step = 5; step < 9; ++step)
      for (Strategy* strategy : {first.get(), resumed.get()}) {
        step_on_own_samples(*strategy, *group, step);
        EXPECT_EQ(is_equal(*strategy), group->rank() == 0 || step == 7)
            << "step " << step << ": three behind the average";
      }
    EXPECT_EQ(weights_of(first->model()), weights_of(resumed->model()));

    const auto plain = make_strategy("ddp", without_momentum(), {.group = group});
    EXPECT_EQ(plain->as<WeightAverager>(), nullptr) << "nothing to average";
  }));
}

}  // namespace
}  // namespace lockstep::train
