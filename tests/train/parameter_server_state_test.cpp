// parameter_server: the servers' weights and optimizer state in ordinary checkpoints, which workers save and load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/message_of.h"
#include "tests/support/temporary.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Training training_by_adam() {
  Training training = training_of_net();
  training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 0.01F});
  };
  return training;
}

float take_rows(Strategy& strategy, int step, int worker, int workers) {
  const auto batch = batch_of(step);
  const std::int64_t each = kBatch / workers;
  const Range rows{.start = worker * each, .stop = (worker + 1) * each};
  return strategy.step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
}

// Two workers train from the folder's checkpoint, or from the start, to step `last`, and save each `every` steps.
// Returns worker 0's weights.
std::vector<float> train_to(int last, const std::string& folder, const ParameterServerOptions& options, int every = 4) {
  constexpr int kWorkers = 2;
  std::vector<float> weights;
  testing::expect_all_well(run_job(
      kWorkers, options,
      [&](Strategy& strategy, int worker) {
        manual_seed(11);
        const auto parts = [&](std::int64_t step) {
          return CheckpointParts{
              .model = strategy.model(), .optimizer = strategy.optimizer(), .step = step, .group = strategy.workers()};
        };
        const auto state = load_checkpoint(folder, parts(0));
        set_first_sample(worker * (kBatch / kWorkers));
        for (auto step = static_cast<int>(state ? state->step : 0); step < last; ++step) {
          strategy.set_lr(0.01F / static_cast<float>(1 + step));
          take_rows(strategy, step, worker, kWorkers);
          if ((step + 1) % every == 0) save_checkpoint(folder, parts(step + 1));
        }
        if (worker == 0) weights = weights_of(strategy.model());
      },
      [](int) { return training_by_adam(); }));
  return weights;
}

TEST(ServerState, AJobThatIsStartedAgainHasTheBitsOfOneThatWasNotStopped) {
  for (const std::size_t min_shard_bytes : {std::size_t{0}, std::size_t{64}}) {
    const std::string whole = testing::temporary("whole"), cut = testing::temporary("cut");
    const ParameterServerOptions options{.servers = 2, .min_shard_bytes = min_shard_bytes};
    const std::vector<float> expected = train_to(12, whole, options, 100);
    EXPECT_NE(train_to(6, cut, options), expected);  // the last checkpoint has step 4
    EXPECT_EQ(train_to(12, cut, options), expected);
  }
}

// The format is the same for all strategies: another number of servers, or ddp, goes on from it.
TEST(ServerState, AnyNumberOfServersAndDdpGoOnFromTheCheckpoint) {
  const std::string whole = testing::temporary("whole"), folder = testing::temporary("servers");
  const std::vector<float> expected = train_to(10, whole, {.servers = 1}, 100);
  train_to(8, folder, {.servers = 2, .min_shard_bytes = 32}, 8);
  const std::string of_ddp = testing::temporary("ddp");
  std::filesystem::copy(folder, of_ddp,
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(train_to(10, folder, {.servers = 3}, 100), expected);
  std::vector<float> by_ddp;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](const Group& group) {
    const auto strategy = make_strategy("ddp", training_by_adam(), {.group = group});
    resume_checkpoint(of_ddp, {.model = strategy->model(), .optimizer = strategy->optimizer(), .group = group});
    set_first_sample(group->rank() * (kBatch / 2));
    for (int step = 8; step < 10; ++step) {
      strategy->set_lr(0.01F / static_cast<float>(1 + step));
      take_rows(*strategy, step, group->rank(), 2);
    }
    if (group->rank() == 0) by_ddp = weights_of(strategy->model());
  }));
  EXPECT_EQ(by_ddp, expected);
}

TEST(ServerState, ADamagedCheckpointIsSkippedAndTheOneBeforeIsComplete) {
  const std::string folder = testing::temporary("damaged");
  train_to(8, folder, {.servers = 2});
  const std::string file = folder + "/step-00000008/optimizer.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-5, std::ios::end).put('!');
  const auto load = [&](const std::string& name) {
    return run_job(
        2, {.servers = 2},
        [&](Strategy& strategy, int) {
          const auto state = resume_checkpoint(
              name, {.model = strategy.model(), .optimizer = strategy.optimizer(), .group = strategy.workers()});
          EXPECT_EQ(state.step, 4);
        },
        [](int) { return training_by_adam(); });
  };
  EXPECT_THAT(load(folder + "/step-00000008")[0], AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("is damaged")));
  testing::expect_all_well(load(folder));
}

// In the middle of a job: all workers have the servers' weights before the call, and worker 0's after it.
TEST(ServerState, UpdateReplicasGivesTheServersWhatTheWorkersHaveLoaded) {
  std::vector<std::vector<float>> weights(2);
  float rate = 0;
  testing::expect_all_well(run_job(
      2, {.servers = 2},
      [&](Strategy& strategy, int worker) {
        take_rows(strategy, 0, worker, 2);
        for (const Tensor& parameter : strategy.model().parameters()) parameter.fill(0.25F);
        strategy.optimizer().set_lr(0);
        strategy.update_replicas();
        EXPECT_THAT(weights_of(strategy.model()), Each(0.25F));
        take_rows(strategy, 1, worker, 2);
        weights[static_cast<std::size_t>(worker)] = weights_of(strategy.model());
        if (worker == 0) rate = strategy.optimizer().lr();
      },
      [](int) {
        Training training = training_of_net();
        training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
          return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.5F});
        };
        return training;
      }));
  EXPECT_EQ(rate, 0);
  for (const auto& each : weights) EXPECT_THAT(each, Each(0.25F)) << "a rate of 0 changes nothing";
}

TEST(ServerState, TheRateIsFetchedAlone) {
  testing::expect_all_well(run_job(
      2, {.servers = 2, .staleness = 1},
      [](Strategy& strategy, int worker) {
        EXPECT_EQ(strategy.lr(), 0.01F) << "before the first step";
        if (worker == 1) strategy.set_lr(0.25F);
        take_rows(strategy, 0, worker, 2);
        if (worker == 1) take_rows(strategy, 1, worker, 2);  // the server has the first one's rate now
        strategy.workers()->barrier();
        const std::uint64_t before = strategy.traffic().front().received;
        EXPECT_EQ(strategy.lr(), 0.25F) << "which worker 1 has set, by the server";
        EXPECT_LE(strategy.traffic().front().received - before, sizeof(float));
        strategy.workers()->barrier();
      },
      [](int) { return training_by_adam(); }));
}

}  // namespace
}  // namespace lockstep::train
