// parameter_server with ranks that are threads: workers that pause, fail and leave, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/support/message_of.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Their group's deadline, as the time for which they pause, is far below that of run_ranks().
TEST(ParameterServer, WaitsForPausedWorkersAsLongAsTheyLive) {
  constexpr std::chrono::seconds kDeadline(6);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> failures(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] = message_of([&] {
        const auto group = ProcessGroup::create({rank, 3, rank, 3}, store, "token",
                                                {.backend = "host", .transport = "shm", .timeout = kDeadline});
        const auto strategy = make_strategy("parameter_server", training_of_line(), options_of(group, {.servers = 1}));
        if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
        line_step(*strategy, 0, rank);
        std::this_thread::sleep_for(kDeadline + std::chrono::milliseconds(1500));
        line_step(*strategy, 1, rank);
      });
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(failures, Each("nothing was thrown")) << "no worker waits for another one";
}

// Worker 2 stays away, so worker 1 waits for it; worker 0, which is a step ahead of worker 2, is away as well.
TEST(ParameterServer, LeavesOutTheWorkerThatOthersWaitForAndNoOther) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::string> failures(4);
  std::promise<void> is_ahead, goes_on;
  const std::shared_future<void> has_gone_on = goes_on.get_future().share();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      failures[static_cast<std::size_t>(rank)] = message_of([&] {
        const auto group =
            ProcessGroup::create({rank, 4, rank, 4}, store, "token",
                                 {.backend = "host", .transport = "shm", .timeout = std::chrono::seconds(6)});
        const auto strategy =
            make_strategy("parameter_server", training_of_line(),
                          options_of(group, {.servers = 1, .staleness = 1, .allow_worker_failures = true}));
        if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
        const int steps = rank == 2 ? 1 : 2;
        for (int step = 0; step < steps; ++step) line_step(*strategy, step, rank);
        if (rank == 0) is_ahead.set_value();
        rank == 1 ? is_ahead.get_future().wait() : has_gone_on.wait();
        line_step(*strategy, steps, rank);
        if (rank == 1) goes_on.set_value();
      });
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::size_t rank : {0, 1, 3}) EXPECT_EQ(failures[rank], "nothing was thrown") << rank;
  EXPECT_THAT(failures[2], AllOf(HasSubstr("parameter_server: worker:2: lost ps:0 (rank 3)"),
                                 HasSubstr("ps:0 goes on without worker:2 (rank 2)")));
}

// The server hears of it before any deadline: run_ranks() has a minute.
TEST(ParameterServer, AWorkerThatLeavesIsNamedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto failures = testing::run_ranks(4, "shm", [&](const Group& group) {
    const auto strategy =
        make_strategy("parameter_server", training_of_line(), options_of(group, {.servers = 1, .staleness = 1}));
    if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && group->rank() == 1) return group->leave();
      line_step(*strategy, step, group->rank());
    }
    strategy->workers()->barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  EXPECT_THAT(failures[3], AllOf(HasSubstr("parameter_server: ps:0: "), HasSubstr("rank 1"),
                                 HasSubstr("has left the group"), HasSubstr("rank 1 is worker:1")));
  EXPECT_EQ(failures[1], "");
}

TEST(ParameterServer, AWorkerThatFailsEndsTheJobForAll) {
  const auto failures = run_job(
      2, {.servers = 1},
      [](Strategy& strategy, int worker) {
        for (int step = 0; step < 5; ++step) line_step(strategy, step, worker);
      },
      [](int rank) {
        auto calls = std::make_shared<int>(0);
        return training_of_line([rank, calls] {
          if (rank == 1 && ++*calls == 3) throw FileError("no samples any more");
        });
      });
  EXPECT_EQ(failures[1], "no samples any more");
  EXPECT_THAT(failures[0], AllOf(HasSubstr("worker:1 has failed in step 3"), HasSubstr("rank 1 is worker:1")));
  EXPECT_THAT(failures[2], AllOf(HasSubstr("parameter_server: ps:0: "), HasSubstr("worker:1 has failed in step 3")));
}

// Returns the messages that the ranks throw, each with its own `options`.
std::vector<std::string> refusals(
    int ranks, const std::function<ParameterServerOptions(int rank)>& options,
    const std::function<Training(int rank)>& training = [](int) { return training_of_line(); }) {
  return testing::run_ranks(ranks, "shm", [&](const Group& group) {
    make_strategy("parameter_server", training(group->rank()), options_of(group, options(group->rank())));
  });
}

TEST(ParameterServer, OptionsThatAreRefused) {
  const auto same = [](const ParameterServerOptions& options) { return [options](int) { return options; }; };
  EXPECT_THAT(refusals(2, same({.servers = 1, .staleness = -1})),
              Each(HasSubstr(".staleness is -1: 0 is synchronous")));
  EXPECT_THAT(refusals(2, same({.servers = 2})),
              Each(HasSubstr(".servers is 2 with 2 ranks in all: from 1 on, and at least one rank")));
  EXPECT_THAT(refusals(2, same({})),
              Each(AllOf(HasSubstr("which ranks are servers?"), HasSubstr("lockrun --ps P --workers W"))));
  EXPECT_THAT(
      refusals(2, [](int rank) { return ParameterServerOptions{.servers = 1, .staleness = rank == 1 ? -1 : 0}; }),
      Each(HasSubstr(".staleness is -1")));
  EXPECT_THAT(refusals(3, same({.servers = 1, .backup_workers = -1})), Each(HasSubstr(".backup_workers is -1")));
  EXPECT_THAT(refusals(3, same({.servers = 1, .staleness = 1, .backup_workers = 1})),
              Each(HasSubstr(".backup_workers = 1 with .staleness = 1: an asynchronous worker waits for no other")));
  EXPECT_THAT(refusals(3, same({.servers = 1, .backup_workers = 2})),
              Each(HasSubstr(".backup_workers is 2 of 2 workers: a step needs the gradients of at least one")));
  EXPECT_THAT(refusals(3, same({.servers = 1, .allow_worker_failures = true})),
              Each(HasSubstr(".allow_worker_failures needs an asynchronous job, .staleness above 0")));
  EXPECT_THAT(refusals(4, same({.servers = 3})), Each(HasSubstr("3 servers for 2 parameters: ps:2 would hold none")));
  EXPECT_THAT(
      refusals(3, [](int rank) { return ParameterServerOptions{.servers = 1, .staleness = rank == 2 ? 3 : 0}; }),
      Each(AllOf(HasSubstr("the ranks have different options"),
                 HasSubstr("rank 2 has staleness = 3 at position 1, rank 0 has staleness = 0"))));
}

TEST(ParameterServer, TasksThatMakeNoJobAreRefusedOnAllRanks) {
  // Rank 1 takes itself for ps:0, and so does rank 2.
  EXPECT_THAT(refusals(3, [](int rank) { return ParameterServerOptions{.servers = rank == 1 ? 2 : 1}; }),
              Each(HasSubstr("ranks 1 and 2 are both ps:0: each process of a job has a number of its own")));
  EXPECT_THAT(refusals(
                  3, [](int) { return ParameterServerOptions{.servers = 1}; },
                  [](int rank) {
                    Training training = training_of_line();
                    if (rank == 2) training.model = [] { return std::make_unique<nn::Linear>(2, 1); };
                    return training;
                  }),
              Each(AllOf(HasSubstr("the ranks built different models: rank 2 has parameter"), HasSubstr("(1, 2)"))));
}

// A rank that is wrong alone, in any part of the call: the others say why, and do not wait for it.
TEST(ParameterServer, WhatOneRankRefusesAllRanksRefuse) {
  const auto options = [](int rank) { return ParameterServerOptions{.servers = 1, .staleness = rank == 0 ? -2 : 0}; };
  const auto wrong = refusals(3, options);
  EXPECT_THAT(wrong[0], HasSubstr("parameter_server: .staleness is -2"));
  for (const int other : {1, 2})
    EXPECT_THAT(wrong[static_cast<std::size_t>(other)], HasSubstr("rank 0: parameter_server: .staleness is -2"));

  const auto of_one_rank = [](const std::function<void(Training&)>& change) {
    return refusals(
        3, [](int) { return ParameterServerOptions{.servers = 1}; },
        [change](int rank) {
          Training training = training_of_line();
          if (rank == 2) change(training);
          return training;
        });
  };
  EXPECT_THAT(of_one_rank([](Training& training) { training.loss = nullptr; }),
              Each(HasSubstr("Training needs all of .model")));
  EXPECT_THAT(of_one_rank([](Training& training) {
                training.model = []() -> std::unique_ptr<nn::Module> { throw FileError("no such file"); };
              }),
              Each(HasSubstr("no such file")));
  EXPECT_THAT(of_one_rank([](Training& training) {  // rank 2 is the server, which makes one
                training.optimizer = [](std::vector<NamedTensor>) -> std::unique_ptr<optim::Optimizer> {
                  return nullptr;
                };
              }),
              Each(HasSubstr("Training::optimizer() returned null")));
}

TEST(ParameterServer, CallsOfTheOtherJobAreRefused) {
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training_of_line(), options_of(group, {.servers = 1}));
    if (auto* const server = strategy->as<ParameterHolder>()) {
      EXPECT_EQ(strategy->workers(), nullptr);
      EXPECT_THAT(message_of([&] { line_step(*strategy, 0, 0); }),
                  HasSubstr("ps:0 (rank 1) trains on no samples: call serve() of as<ParameterHolder>() here"));
      EXPECT_THAT(message_of([&] { strategy->model(); }),
                  HasSubstr("ps:0 (rank 1) holds a part of the parameters: worker 0's model()"));
      EXPECT_EQ(strategy->optimizer().kind(), "SGD");
      server->serve();
      EXPECT_THAT(message_of([&] { server->serve(); }), HasSubstr("ps:0: serve() has run"));
      return;
    }
    EXPECT_THAT(message_of([&] { strategy->set_lr(-1); }), HasSubstr("got a learning rate of -1"));
  }));
}

}  // namespace
}  // namespace lockstep::train
