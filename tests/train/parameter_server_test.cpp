// parameter_server with ranks that are threads: its weights against ddp's, staleness, shards. What goes wrong:
// parameter_server_faults_test; real processes: parameter_server_job_test.
#include "lockstep/train/parameter_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "tests/support/message_of.h"
#include "tests/train/ddp_outcome.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// This worker's part of step `step`, of `workers`.
float take_step(Strategy& strategy, int step, int worker, int workers) {
  const auto batch = batch_of(step);
  const std::int64_t each = kBatch / workers;
  const Range rows{.start = worker * each, .stop = (worker + 1) * each};
  return strategy.step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
}

struct Shape {
  int workers, servers;
  Sharding sharding;
};
class SynchronousServer : public ::testing::TestWithParam<Shape> {};

TEST_P(SynchronousServer, ComesToTheWeightsOfDdp) {
  const auto [workers, servers, sharding] = GetParam();
  std::vector<float> weights;
  std::vector<float> last(static_cast<std::size_t>(workers));
  const int ranks = workers;
  testing::expect_all_well(
      run_job(workers, {.servers = servers, .sharding = sharding}, [&](Strategy& strategy, int worker) {
        manual_seed(11);
        set_first_sample(worker * (kBatch / ranks));
        for (int step = 0; step < kSteps; ++step)
          last[static_cast<std::size_t>(worker)] = take_step(strategy, step, worker, ranks);
        EXPECT_EQ(strategy.workers()->world_size(), ranks);
        EXPECT_EQ(strategy.workers()->rank(), worker);
        if (worker == 0) weights = weights_of(strategy.model());
      }));
  const Outcome ddp = train_by_ddp(workers);
  EXPECT_EQ(weights, ddp.weights) << "the same sums in the same order";
  float mean = 0;
  for (const float loss : last) mean += loss / static_cast<float>(workers);
  EXPECT_NEAR(mean, ddp.last_loss, 1e-5F);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SynchronousServer,
                         ::testing::Values(Shape{1, 1, Sharding::kRoundRobin}, Shape{2, 1, Sharding::kRoundRobin},
                                           Shape{3, 2, Sharding::kGreedyBytes}, Shape{4, 3, Sharding::kRoundRobin}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.workers) + "_workers_" +
                                  std::to_string(tested.param.servers) + "_ps";
                         });

TEST(ParameterServer, BeginsWithWorkerZerosWeightsAndFollowsItsRate) {
  std::vector<float> weights, expected;
  const auto with_rate = [](Strategy& strategy, int worker, int workers) {
    manual_seed(11);
    for (const Tensor& parameter : strategy.model().parameters())
      if (worker == 0) parameter.fill(0.01F);
    for (int step = 0; step < 3; ++step) {
      if (worker == 0 || strategy.name() == std::string("ddp")) strategy.set_lr(0.2F / static_cast<float>(step + 1));
      take_step(strategy, step, worker, workers);
    }
    return weights_of(strategy.model());
  };
  std::vector<float> of_the_other;
  testing::expect_all_well(run_job(2, {.servers = 2}, [&](Strategy& strategy, int worker) {
    set_first_sample(worker * (kBatch / 2));
    (worker == 0 ? weights : of_the_other) = with_rate(strategy, worker, 2);
  }));
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](const Group& group) {
    const auto strategy = make_strategy("ddp", training_of_net(), {.group = group});
    set_first_sample(group->rank() * (kBatch / 2));
    for (const Tensor& parameter : strategy->model().parameters()) parameter.fill(0.01F);
    const std::vector<float> own = with_rate(*strategy, group->rank(), 2);
    if (group->rank() == 0) expected = own;
  }));
  EXPECT_EQ(weights, expected);
  EXPECT_EQ(of_the_other, weights) << "all workers have the servers' weights after a step";
}

// Parameters that no server updates come from worker 0 as well.
TEST(ParameterServer, BeginsWithWorkerZerosFrozenParameters) {
  std::vector<float> frozen(3);
  testing::expect_all_well(run_job(
      3, {.servers = 1},
      [&](Strategy& strategy, int worker) {
        const Tensor parameter = strategy.model().named_parameters()[0].tensor;
        if (worker == 0) parameter.fill(0.125F);
        take_step(strategy, 0, worker, 3);
        frozen[static_cast<std::size_t>(worker)] = parameter.span<float>()[0];
      },
      [](int) {
        Training training = training_of_net();
        training.model = [] {
          auto net = std::make_unique<Net>();
          net->conv.freeze();
          return net;
        };
        return training;
      }));
  EXPECT_THAT(frozen, Each(0.125F));
}

TEST(ParameterServer, TrafficIsAllGradientsOutAndAllWeightsIn) {
  std::atomic<std::uint64_t> server_sent{0}, worker_sent{0}, worker_received{0};
  testing::expect_all_well(testing::run_ranks(4, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training_of_net(), options_of(group, {.servers = 2}));
    if (auto* const server = strategy->as<ParameterHolder>()) {
      server->serve();
      server_sent += strategy->traffic().at(0).sent;
      return;
    }
    for (int step = 0; step < 3; ++step) take_step(*strategy, step, group->rank(), 2);
    if (group->rank() == 0) return;
    worker_sent = strategy->traffic().at(0).sent;
    worker_received = strategy->traffic().at(0).received;
  }));
  std::uint64_t bytes = 0, buffers = 0;
  const auto net = training_of_net().model();
  for (const NamedTensor& each : net->named_parameters()) bytes += each.tensor.bytes();
  for (const NamedTensor& each : net->named_buffers()) buffers += each.tensor.bytes();
  EXPECT_GE(worker_sent, 3 * bytes);
  EXPECT_LE(worker_sent, 3 * (bytes + 1024)) << "and what fills the cache lines";
  EXPECT_EQ(worker_received, worker_sent + worker_sent / 3 + buffers)
      << "and worker 0's weights and buffers, before the first step";
  EXPECT_EQ(server_sent, worker_sent + worker_received) << "to two workers, by both servers together";
}

// -- asynchronous

TEST(AsynchronousServer, LearnsWithGradientsThatAreStale) {
  for (const int staleness : {1, 4}) {
    std::vector<float> first(3), last(3), weights;
    testing::expect_all_well(run_job(
        3, {.servers = 2, .staleness = staleness},
        [&](Strategy& strategy, int worker) {
          const auto at = static_cast<std::size_t>(worker);
          first[at] = line_step(strategy, 0, worker);
          for (int step = 1; step < 80; ++step) last[at] = line_step(strategy, step, worker);
          if (worker == 0) weights = weights_of(strategy.model());
        },
        [](int) { return training_of_line(); }));
    for (std::size_t worker = 0; worker < 3; ++worker)
      EXPECT_LT(last[worker], 0.01F) << "staleness " << staleness << ", worker " << worker;
    EXPECT_GT(*std::max_element(first.begin(), first.end()), 0.5F)
        << "a bound that is met at the start would say little";
    EXPECT_NEAR(weights[0], 3, 0.2);
    EXPECT_NEAR(weights[1], -1, 0.2);
  }
}

// Worker 1 computes its first gradients only when worker 0 has finished as many steps as it may; worker 0's next step
// ends only when worker 1's gradients have come.
TEST(AsynchronousServer, AWorkerIsAtMostSoManyStepsAhead) {
  constexpr int kStaleness = 2;
  std::atomic<int> finished{0}, computed{0};
  testing::expect_all_well(run_job(
      2, {.servers = 1, .staleness = kStaleness},
      [&](Strategy& strategy, int worker) {
        for (int step = 0; step < 6; ++step) {
          line_step(strategy, step, worker);
          if (worker == 1) continue;
          ++finished;
          EXPECT_GE(computed, step + 1 - kStaleness);
        }
      },
      [&](int rank) {
        return training_of_line([&, rank] {
          if (rank != 1) return;
          const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
          while (computed == 0 && finished < kStaleness && std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          EXPECT_GE(finished, kStaleness) << "worker 0 does not wait for worker 1 before";
          ++computed;
        });
      }));
}

TEST(AsynchronousServer, WorkersMayMakeUnequalNumbersOfSteps) {
  const auto unequal = [](Strategy& strategy, int worker) {
    for (int step = 0; step < (worker == 0 ? 12 : 2); ++step) line_step(strategy, step, worker);
  };
  testing::expect_all_well(run_job(2, {.servers = 1, .staleness = 1}, unequal, [](int) { return training_of_line(); }));
  const auto failures = run_job(2, {.servers = 1}, unequal, [](int) { return training_of_line(); });
  EXPECT_THAT(failures[2],
              HasSubstr("worker:1 (rank 1) has finished after 2 steps, but worker:0 (rank 0) is in step 3: "
                        "synchronous workers must make the same"));
  EXPECT_THAT(failures[0], AllOf(HasSubstr("parameter_server: worker:0: "),
                                 HasSubstr("synchronous workers must make the same"), HasSubstr("rank 2 is ps:0")));
}

// The other's first step does not wait for it.
TEST(AsynchronousServer, AWorkerMayMakeNoStepAtAll) {
  for (const int idle : {0, 1}) {
    const auto only_one = [&](Strategy& strategy, int worker) {
      for (int step = 0; step < (worker == idle ? 0 : 3); ++step) line_step(strategy, step, worker);
    };
    testing::expect_all_well(
        run_job(2, {.servers = 2, .staleness = 5}, only_one, [](int) { return training_of_line(); }));
  }
}

// -- pure

TEST(TaskOfEnvironment, IsWhatTheVariablesSay) {
  using Environment = std::map<std::string, std::string>;
  const auto task_of = [](const Environment& environment) {
    return task_of_environment([&](const char* name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_EQ(task_of({}), std::nullopt);
  EXPECT_EQ(task_of({{"LOCKSTEP_JOB", "ps"}, {"LOCKSTEP_TASK_INDEX", "1"}}), (Task{Task::Job::kServer, 1}));
  EXPECT_EQ(name_of(*task_of({{"LOCKSTEP_JOB", "worker"}, {"LOCKSTEP_TASK_INDEX", "3"}})), "worker:3");
  const auto fault_of = [&](const Environment& environment) { return message_of([&] { task_of(environment); }); };
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "chief"}, {"LOCKSTEP_TASK_INDEX", "0"}}),
              HasSubstr("LOCKSTEP_JOB=chief: ps or worker is needed"));
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "ps"}}), HasSubstr("LOCKSTEP_JOB=ps is set but LOCKSTEP_TASK_INDEX is not"));
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "ps"}, {"LOCKSTEP_TASK_INDEX", "-1"}}), HasSubstr("LOCKSTEP_TASK_INDEX"));
}

std::vector<NamedTensor> tensors_of(const std::vector<std::int64_t>& counts) {
  std::vector<NamedTensor> tensors;
  for (const std::int64_t count : counts)
    tensors.push_back({"p" + std::to_string(tensors.size()), Tensor::zeros({count})});
  return tensors;
}

TEST(ShardParameters, ByTurnsOrToWhoeverHoldsTheFewestBytes) {
  const auto tensors = tensors_of({100, 10, 100, 10, 30});
  EXPECT_THAT(shard_parameters(tensors, 2, Sharding::kRoundRobin), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(shard_parameters(tensors, 2, Sharding::kGreedyBytes), ElementsAre(0, 1, 1, 0, 0));
  EXPECT_THAT(shard_parameters(tensors, 1, Sharding::kGreedyBytes), Each(0));
  EXPECT_THAT(shard_parameters(tensors, 5, Sharding::kGreedyBytes), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(message_of([&] { shard_parameters(tensors, 0, Sharding::kRoundRobin); }),
              HasSubstr("got 0 servers; expected at least 1"));
  EXPECT_THAT(message_of([&] { shard_parameters(tensors, 6, Sharding::kRoundRobin); }),
              HasSubstr("6 servers for 5 parameters: ps:5 would hold none; start fewer (lockrun --ps 5 at most)"));
}

TEST(ShardParameters, AsATable) {
  EXPECT_EQ(describe_shards(tensors_of({512, 8, 16}), 2, Sharding::kGreedyBytes),
            "parameter  bytes       server\n"
            "p0         2048        ps:0\n"
            "p1         32          ps:1\n"
            "p2         64          ps:1\n"
            "all of     2048        ps:0\n"
            "all of     96          ps:1\n");
}

}  // namespace
}  // namespace lockstep::train
