// parameter_server with backup workers: slow workers hold up no step, and their gradients are dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Loops until ps:0 has made `steps` updates, as TensorFlow's workers with a StopAtStepHook.
int train_until(Strategy& strategy, int steps, int worker) {
  auto* const of_worker = strategy.as<ParameterWorker>();
  int own = 0;
  for (; of_worker->global_step() < steps; ++own)
    line_step(strategy, static_cast<int>(of_worker->global_step()), worker);
  EXPECT_EQ(of_worker->global_step(), steps);
  EXPECT_LE(of_worker->dropped_gradients(), own);
  return own;
}

// SGD on the line, by hand: in each step the mean of the gradients of `workers` workers.
std::vector<float> by_hand(int steps, int workers) {
  std::vector<float> weights;
  testing::expect_all_well(run_job(
      workers, {.servers = 1},
      [&](Strategy& strategy, int worker) {
        for (int step = 0; step < steps; ++step) line_step(strategy, step, worker);
        if (worker == 0) weights = weights_of(strategy.model());
      },
      [](int) { return training_of_line(); }));
  return weights;
}

// Worker 2 does not answer before the others have ended.
TEST(BackupWorkers, AStepIsCompleteWithoutTheSlowestWorker) {
  constexpr int kManySteps = 12;
  for (const int servers : {1, 2}) {
    std::atomic<int> ended{0};
    std::vector<float> weights(2), of_the_slow_one;
    std::vector<std::int64_t> dropped;
    testing::expect_all_well(testing::run_ranks(3 + servers, "shm", [&](const Group& group) {
      const int rank = group->rank();
      const auto strategy = make_strategy("parameter_server", training_of_line([&, rank] {
                                            for (int i = 0; rank == 2 && ended < 2 && i < 3000; ++i)
                                              std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                          }),
                                          options_of(group, {.servers = servers, .backup_workers = 1}));
      if (auto* const server = strategy->as<ParameterHolder>()) {
        server->serve();
        if (rank == 3) dropped = server->dropped_gradients();
        EXPECT_EQ(server->dropped_gradients()[2], 1) << "all servers drop the same";
        return;
      }
      const int own = train_until(*strategy, kManySteps, rank);
      EXPECT_EQ(own, rank == 2 ? 1 : kManySteps);
      EXPECT_EQ(strategy->as<ParameterWorker>()->dropped_gradients(), rank == 2 ? 1 : 0);
      if (rank == 0) weights = weights_of(strategy->model());
      if (rank == 2) of_the_slow_one = weights_of(strategy->model());
      ++ended;
    }));
    EXPECT_EQ(weights, by_hand(kManySteps, 2)) << "the mean of two gradients, in the order of the workers";
    EXPECT_EQ(of_the_slow_one, weights) << "it has the current weights";
    EXPECT_THAT(dropped, ElementsAre(0, 0, 1));
  }
}

// With unequal speeds and several servers, none waits for a worker that waits for another server.
TEST(BackupWorkers, WorkersOfChangingSpeedReachTheEndTogether) {
  constexpr int kManySteps = 60;
  std::atomic<std::int64_t> at_servers{0}, at_workers{0};
  std::vector<std::vector<float>> weights(4);
  testing::expect_all_well(testing::run_ranks(7, "shm", [&](const Group& group) {
    const int rank = group->rank();
    auto calls = std::make_shared<int>(0);
    const auto strategy = make_strategy("parameter_server", training_of_line([rank, calls] {
                                          if ((++*calls + rank) % 3 == 0)
                                            std::this_thread::sleep_for(std::chrono::microseconds(700 * (rank + 1)));
                                        }),
                                        options_of(group, {.servers = 2, .backup_workers = 2}));
    if (auto* const server = strategy->as<ParameterHolder>()) {
      server->serve();
      for (const std::int64_t of_worker : server->dropped_gradients()) at_servers += of_worker;
      return;
    }
    const int own = train_until(*strategy, kManySteps, rank);
    const std::int64_t dropped = strategy->as<ParameterWorker>()->dropped_gradients();
    at_workers += dropped;
    EXPECT_LE(own - dropped, kManySteps);
    if (rank < 4) weights[static_cast<std::size_t>(rank)] = weights_of(strategy->model());
  }));
  EXPECT_EQ(at_servers, 2 * at_workers) << "both servers, the same gradients";
  for (const auto& each : weights) EXPECT_EQ(each, weights[0]) << "all have the weights of the last step";
  EXPECT_NEAR(weights[0][0], 3, 0.3);
}

TEST(BackupWorkers, WithoutSlowWorkersItIsTheSynchronousJob) {
  EXPECT_EQ(by_hand(5, 1), [] {
    std::vector<float> weights;
    testing::expect_all_well(run_job(
        1, {.servers = 2, .backup_workers = 0},
        [&](Strategy& strategy, int worker) {
          train_until(strategy, 5, worker);
          weights = weights_of(strategy.model());
        },
        [](int) { return training_of_line(); }));
    return weights;
  }());
}

TEST(BackupWorkers, WorkersThatEndTooEarlyAreNamed) {
  const auto failures = run_job(
      3, {.servers = 1, .backup_workers = 1},
      [](Strategy& strategy, int worker) {
        if (worker == 0) return void(train_until(strategy, 50, worker));
        line_step(strategy, 0, worker);
      },
      [](int) { return training_of_line(); });
  EXPECT_THAT(failures[3], AllOf(HasSubstr("1 of 3 workers are left, of which a step needs 2"),
                                 HasSubstr("all workers loop until global_step()")));
}

}  // namespace
}  // namespace lockstep::train
