// train(): logs, summaries and checkpoints by steps and by time, resuming, and what happens when a step fails.
#include "lockstep/train/train_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <thread>

#include "tests/ddp/ranks.h"
#include "tests/faults/child.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/event_records.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::LogLines;
using ::testing::Not;

DeploymentConfig two_clones() { return {.num_clones = 2, .devices = on_cpus(0, 2).devices}; }

// The samples of eight of strategy_training.h's batches, in one set.
data::TensorDataset eight_batches() {
  Tensors inputs, labels;
  for (int step = 0; step < 8; ++step) {
    const auto batch = batch_of(step);
    inputs.push_back(batch.first), labels.push_back(batch.second);
  }
  return data::TensorDataset({concat(inputs), concat(labels)});
}

DeployOptions steps_of_batches(int count) {
  return {.next_batch = [step = 0, count]() mutable -> std::optional<data::Batch> {
    if (step == count) return std::nullopt;
    return batch_of(step++);
  }};
}

data::Pipeline endless() { return data::Pipeline(eight_batches()).shuffle().repeat().batch(kBatch); }

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TrainLoop, ResumesWithTheBitsOfARunThatNeverStopped) {
  const Folder one, two;
  std::vector<float> expected;
  {
    data::Reader reader(endless());
    const DeployedModel deployed = deploy(two_clones(), training_of_net(), {.reader = &reader});
    manual_seed(11);
    train(deployed.train_op, one.path(), {}, {.number_of_steps = 20});
    expected = weights_of(deployed.clones->variables());
  }
  const LogLines log;
  for (const std::int64_t steps : {7, 7, 20}) {  // the second has nothing to do; the third begins in mid-epoch
    data::Reader reader(endless());
    const DeployedModel deployed = deploy(two_clones(), training_of_net(), {.reader = &reader});
    manual_seed(11);  // a resumed run takes the checkpoint's random state instead
    const float loss = train(deployed.train_op, two.path(), {}, {.number_of_steps = steps});
    EXPECT_EQ(std::isnan(loss), log.text().find("nothing to do") != std::string::npos && steps == 7) << steps;
    EXPECT_TRUE(steps != 20 || weights_of(deployed.clones->variables()) == expected);
  }
  EXPECT_THAT(log.text(), AllOf(HasSubstr("nothing to do: "), HasSubstr("has step 7, and number_of_steps is 7"),
                                HasSubstr("goes on from step 7")));
}

TEST(TrainLoop, LogsWritesSummariesAndGoesOnFromItsCheckpoint) {
  const Folder folder;
  const LogLines log;
  DeployOptions options = steps_of_batches(5);
  options.summarize_gradients = true;
  std::vector<float> weights;
  {
    const DeployedModel deployed = deploy(two_clones(), training_of_net(), options);
    train(deployed.train_op, folder.path(), deployed.summary_op,
          {.number_of_steps = 5, .log_every_n_steps = 2, .save_summaries_steps = 2});
    weights = weights_of(deployed.clones->variables());
  }
  EXPECT_THAT(log.text(), AllOf(HasSubstr("global step 2: loss = "), HasSubstr("global step 4: loss = ")));
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.is_regular_file()) events = testing::bytes_of_file(entry.path().string());
  for (const char* tag :
       {"total_loss", "clone_0/clone_loss", "clone_1/clone_loss", "conv.weight/gradient", "conv.weight/gradient_norm"})
    EXPECT_THAT(events, HasSubstr(tag));

  const DeployedModel deployed = deploy(two_clones(), training_of_net(), steps_of_batches(100));
  train(deployed.train_op, folder.path(), {}, {.number_of_steps = 5});
  EXPECT_EQ(weights_of(deployed.clones->variables()), weights) << "no step was left";
  train(deployed.train_op, folder.path(), {}, {.number_of_steps = 7});
  EXPECT_NE(weights_of(deployed.clones->variables()), weights);
  EXPECT_THAT(log.text(), HasSubstr("goes on from step 5"));
}

TEST(TrainLoop, EndsWithTheSamplesAndCountsSummariesOnce) {
  const Folder folder;
  int steps = 0;
  std::vector<std::int64_t> summarized;
  const TrainOp train_op{
      .run = [&]() -> std::optional<float> { return ++steps <= 7 ? std::optional(0.5F) : std::nullopt; }};
  const float last =
      train(train_op, folder.path(), [&](SummaryWriter&, std::int64_t step) { summarized.push_back(step); },
            {.save_summaries_steps = 3});
  EXPECT_EQ(last, 0.5F);
  EXPECT_THAT(summarized, ElementsAre(3, 6, 7));
}

TEST(TrainLoop, WhatIsRefused) {
  const Folder folder;
  const TrainOp diverges{.run = [] { return std::optional(std::numeric_limits<float>::quiet_NaN()); }};
  EXPECT_THAT(message_of([&] { train(diverges, folder.path()); }),
              HasSubstr("step 1: Model diverged with total_loss = NaN"));
  EXPECT_THAT(message_of([&] { train({}, folder.path()); }), HasSubstr("train_op has no .run"));
  EXPECT_THAT(message_of([&] { train(diverges, folder.path(), {}, {.number_of_steps = -1}); }),
              HasSubstr("number_of_steps is -1"));
  EXPECT_THAT(message_of([&] { train(diverges, folder.path(), {}, {.log_every_n_steps = 0}); }),
              HasSubstr("log_every_n_steps is 0"));
}

// A train_op without a model's clones: what it trains is one number.
struct Counter {
  struct Number : nn::Module {
    Tensor value = Tensor::zeros({1});
    Number() { add_parameter("value", value); }
  } number;
  int steps = 0;
  TrainOp op() {
    return {.run = [this]() -> std::optional<float> {
              number.value.fill(static_cast<float>(++steps));
              return 0.5F;
            },
            .model = &number,
            .seek = [this](std::int64_t done) { steps = static_cast<int>(done); }};
  }
};

TEST(TrainLoop, SavesEverySoManyStepsAndKeepsSoMany) {
  const Folder folder;
  Counter counter;
  train(counter.op(), folder.path(), {}, {.number_of_steps = 11, .save_interval_steps = 2, .max_to_keep = 3});
  EXPECT_THAT(folders_in(folder.path()), ElementsAre("step-00000008", "step-00000010", "step-00000011"));
}

TEST(TrainLoop, SavesAndSummarizesByTime) {
  const Folder folder;
  Counter counter;
  TrainOp op = counter.op();
  const auto step = op.run;
  op.run = [&] {  // the third step is the first that is complete after more than a second
    if (counter.steps == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    return step();
  };
  std::vector<std::int64_t> summarized;
  train(op, folder.path(), [&](SummaryWriter&, std::int64_t number) { summarized.push_back(number); },
        {.number_of_steps = 4,
         .save_summaries_steps = 0,
         .save_summaries_secs = std::chrono::seconds(1),
         .save_interval_secs = std::chrono::seconds(1)});
  ASSERT_GE(summarized.size(), 2u);
  EXPECT_EQ(summarized.back(), 4);
  EXPECT_LE(summarized.front(), 3);
  EXPECT_THAT(folders_in(folder.path()), ::testing::Contains("step-00000003"));
  EXPECT_EQ(folders_in(folder.path()).back(), "step-00000004");
}

TEST(TrainLoop, AnErrorBeforeAStepSavesTheLastStep) {
  const Folder folder;
  const LogLines log;
  {
    Counter counter;
    TrainOp op = counter.op();
    const auto step = op.run;
    op.run = [&]() -> std::optional<float> {
      if (counter.steps == 5) throw Error("the disk with the images is gone");
      return step();
    };
    EXPECT_THAT(message_of([&] { train(op, folder.path(), {}, {.number_of_steps = 9}); }),
                HasSubstr("the disk with the images is gone"));
  }
  EXPECT_THAT(folders_in(folder.path()), ElementsAre("step-00000005"));
  EXPECT_THAT(log.text(), HasSubstr("step 6 failed; step 5 is saved in"));
  Counter counter;
  train(counter.op(), folder.path(), {}, {.number_of_steps = 6});
  EXPECT_EQ(counter.steps, 6) << "one step was left";
}

TEST(TrainLoop, AnErrorWithinAStepSavesNothing) {
  const Folder folder;
  const LogLines log;
  Counter counter;
  TrainOp op = counter.op();
  const auto step = op.run;
  op.run = [&]() -> std::optional<float> {
    const auto loss = step();
    if (counter.steps == 4) throw Error("half of the weights are updated");
    return loss;
  };
  EXPECT_THAT(message_of([&] { train(op, folder.path(), {}, {.number_of_steps = 9}); }), HasSubstr("half of"));
  EXPECT_THAT(folders_in(folder.path()), ElementsAre());
  EXPECT_THAT(log.text(), HasSubstr("step 4 failed after it had changed the model, so that step 3 is not saved"));
}

// -- several processes

using Group = std::shared_ptr<ProcessGroup>;

std::vector<std::string> run_together(const std::function<TrainLoopOptions(int rank)>& options) {
  const Folder folder;
  return testing::run_ranks(2, "threads", [&](const Group& group) {
    const TrainOp op{.run = [] { return std::optional(0.5F); }, .group = group};
    train(op, folder.path(), {}, options(group->rank()));
    group->barrier();
  });
}

TEST(TrainLoop, OptionsThatDifferAreNamedOnAllRanks) {
  EXPECT_THAT(run_together([](int rank) { return TrainLoopOptions{.number_of_steps = 10 + 10 * rank}; }),
              Each(AllOf(HasSubstr("train: the ranks have different options: rank 1 has number_of_steps 20"),
                         HasSubstr("rank 0 has number_of_steps 10"))));
  EXPECT_THAT(run_together([](int rank) {
                return TrainLoopOptions{.number_of_steps = 2, .save_interval_secs = std::chrono::seconds(9 * rank)};
              }),
              Each(HasSubstr("rank 1 has save_interval_secs 9 at position 2, rank 0 has save_interval_secs 0")));
  EXPECT_THAT(run_together([](int rank) { return TrainLoopOptions{.number_of_steps = -rank}; }),
              Each(HasSubstr("train: number_of_steps is -1: it must be at least 0")));
  testing::expect_all_well(
      run_together([](int rank) { return TrainLoopOptions{.number_of_steps = 3, .log_every_n_steps = 1 + 5 * rank}; }));
}

TEST(TrainLoop, AnErrorOfOneRankBeforeTheFirstStepIsThrownOnAllAndTheGroupStays) {
  const Folder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file).put('x');
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](const Group& group) {
    TrainOp op{.run = [] { return std::optional(0.5F); }, .group = group};
    const auto summary = [](SummaryWriter&, std::int64_t) {};
    EXPECT_THAT(message_of([&] { train(op, file, summary, {.number_of_steps = 1}); }), HasSubstr(file))
        << "the chief cannot write there";
    op.seek = [&](std::int64_t) {
      if (group->rank() == 1) throw FileError("no such sample");
    };
    EXPECT_THAT(message_of([&] { train(op, folder.path(), summary, {.number_of_steps = 1}); }),
                HasSubstr("no such sample"));
    group->barrier();
  }));
}

TEST(TrainLoop, AnErrorOfOneRankEndsTheOthersEvenIfItIsCaught) {
  const Folder folder;
  std::vector<std::string> reasons(2);
  const auto failures = testing::run_ranks(2, "threads", [&](const Group& group) {
    int steps = 0;
    const TrainOp op{
        .run = [&]() -> std::optional<float> {
          if (++steps == 3 && group->rank() == 1) throw FileError("no samples any more");
          group->barrier();
          return 0.5F;
        },
        .abort = [&](const std::string& reason) { reasons[static_cast<std::size_t>(group->rank())] = reason; },
        .group = group};
    if (group->rank() == 0) return void(train(op, folder.path()));
    EXPECT_THAT(message_of([&] { train(op, folder.path()); }), HasSubstr("no samples"));
  });
  EXPECT_THAT(failures[0], HasSubstr("rank 1 aborted the group: no samples any more"));
  EXPECT_EQ(reasons[1], "no samples any more");
}

// The worker that fails catches its error and stays: see train_loop_rank.cpp.
TEST(TrainLoop, AWorkersErrorOutsideItsStepReachesAllTasksAtOnce) {
  const Folder folder;
  testing::Child job(
      {LOCKSTEP_LOCKRUN, "--no-fold", "--ps", "1", "--workers", "2", LOCKSTEP_TRAIN_LOOP_RANK, folder.path()});
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), kPeerLostExitCode) << job.errors();
  EXPECT_THAT(job.output(), HasSubstr("[worker:1] caught: no samples any more\n"));
  for (const char* task : {"[worker:0] ", "[ps:0] "})
    EXPECT_THAT(job.errors(), HasSubstr(task + std::string("train_loop_rank: error: parameter_server: ")));
  EXPECT_THAT(job.errors(), HasSubstr("rank 1 aborted the group: no samples any more; rank 1 is worker:1"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(TrainLoop, WrongOptionsOfAWorkerEndTheServersToo) {
  const Folder folder;
  testing::Child job({LOCKSTEP_LOCKRUN, "--no-fold", "--ps", "1", "--workers", "2", LOCKSTEP_TRAIN_LOOP_RANK,
                      folder.path(), "wrong-options"});
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), kPeerLostExitCode) << job.errors();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("[worker:0] caught: "), HasSubstr("[worker:1] caught: ")));
  EXPECT_THAT(job.errors(), HasSubstr("[ps:0] train_loop_rank: error: parameter_server: "));
  EXPECT_TRUE(job.nothing_left());
}

// The sample in the header of train/deploy.h.
TEST(Deploy, TheHeadersSampleCompilesAndTrains) {
  const Folder folder;
  const data::TensorDataset images = eight_batches();
  data::Reader reader(data::Pipeline(images).shuffle().repeat().batch(kBatch));
  const train::DeployedModel deployed =
      train::deploy({.num_clones = 2, .devices = on_cpus(0, 2).devices},
                    {.model = [] { return std::make_unique<Net>(); },
                     .optimizer =
                         [](std::vector<NamedTensor> variables) {
                           return std::make_unique<optim::SGD>(std::move(variables), optim::SGDOptions{.lr = 0.1F});
                         },
                     .loss = nn::cross_entropy},
                    {.reader = &reader, .summarize_gradients = true});
  EXPECT_TRUE(
      std::isfinite(train::train(deployed.train_op, folder.path(), deployed.summary_op, {.number_of_steps = 10})));
}

}  // namespace
}  // namespace lockstep::train
