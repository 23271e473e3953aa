// parameter_server with ranks that are threads: its weights against ddp's, staleness, refusals. Real processes: parameter_server_job_test.
#include "lockstep/train/parameter_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "tests/support/message_of.h"
#include "tests/train/ddp_outcome.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

StrategyOptions options_of(const Group& group, const ParameterServerOptions& options) {
  return {.group = group, .parameter_server = options};
}

// Servers serve; `work` is called on the workers. Returns what each rank threw; workers come first.
std::vector<std::string> run_job(
    int workers, const ParameterServerOptions& options, const std::function<void(Strategy&, int worker)>& work,
    const std::function<Training(int rank)>& training = [](int) { return training_of_net(); }) {
  return testing::run_ranks(workers + options.servers, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training(group->rank()), options_of(group, options));
    EXPECT_EQ(strategy->is_server(), group->rank() >= workers);
    if (strategy->is_server())
      strategy->serve();
    else
      work(*strategy, group->rank());
  });
}

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
  testing::expect_all_well(run_job(workers, {.servers = servers, .sharding = sharding}, [&](Strategy& strategy, int worker) {
    manual_seed(11);
    set_first_sample(worker * (kBatch / ranks));
    for (int step = 0; step < kSteps; ++step) last[static_cast<std::size_t>(worker)] = take_step(strategy, step, worker, ranks);
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
                           return std::to_string(tested.param.workers) + "_workers_" + std::to_string(tested.param.servers) + "_ps";
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

TEST(ParameterServer, TrafficIsAllGradientsOutAndAllWeightsIn) {
  std::atomic<std::uint64_t> server_sent{0}, worker_sent{0}, worker_received{0};
  testing::expect_all_well(testing::run_ranks(4, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training_of_net(), options_of(group, {.servers = 2}));
    if (strategy->is_server()) {
      strategy->serve();
      server_sent += strategy->traffic().at(0).sent;
      return;
    }
    for (int step = 0; step < 3; ++step) take_step(*strategy, step, group->rank(), 2);
    if (group->rank() == 0) return;
    worker_sent = strategy->traffic().at(0).sent;
    worker_received = strategy->traffic().at(0).received;
  }));
  std::uint64_t bytes = 0;
  const auto net = training_of_net().model();
  for (const NamedTensor& each : net->named_parameters()) bytes += each.tensor.bytes();
  EXPECT_GE(worker_sent, 3 * bytes);
  EXPECT_LE(worker_sent, 3 * (bytes + 1024)) << "and what fills the cache lines";
  EXPECT_EQ(worker_sent, worker_received);
  EXPECT_EQ(server_sent, 2 * worker_received) << "to two workers, by both servers together";
}

// -- asynchronous

// y = 3 x - 1, a mean of squares of which each worker has other samples.
Training training_of_line(const std::function<void()>& on_loss = [] {}) {
  return {.model =
              [] {
                manual_seed(5);
                return std::make_unique<nn::Linear>(1, 1);
              },
          .optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
            return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.1F});
          },
          .loss =
              [on_loss](const Tensor& outputs, const Tensor& targets) {
                on_loss();
                return mse_loss(outputs, targets);
              }};
}

float line_step(Strategy& strategy, int step, int worker) {
  std::vector<float> xs, ys;
  for (int i = 0; i < 4; ++i)
    xs.push_back(static_cast<float>((7 * step + 3 * worker + 5 * i) % 17) / 8 - 1), ys.push_back(3 * xs.back() - 1);
  return strategy.step(Tensor::from<float>(xs, {4, 1}), Tensor::from<float>(ys, {4, 1}));
}

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
    for (std::size_t worker = 0; worker < 3; ++worker) EXPECT_LT(last[worker], 0.01F) << "staleness " << staleness << ", worker " << worker;
    EXPECT_GT(*std::max_element(first.begin(), first.end()), 0.5F) << "a bound that is met at the start would say little";
    EXPECT_NEAR(weights[0], 3, 0.2);
    EXPECT_NEAR(weights[1], -1, 0.2);
  }
}

// Worker 1 computes its first gradients only when worker 0 has finished as many steps as it may; worker 0's next step ends only when
// worker 1's gradients have come.
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
              HasSubstr("worker:1 (rank 1) has finished after 2 steps, worker:0 (rank 0) is in step 3: synchronous workers make as many"));
  EXPECT_THAT(failures[0],
              AllOf(HasSubstr("parameter_server: worker:0: "), HasSubstr("synchronous workers make as many"), HasSubstr("rank 2 is ps:0")));
}

// -- failures and refusals

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

// What all ranks throw where `options` are those of each.
std::vector<std::string> refusals(
    int ranks, const std::function<ParameterServerOptions(int rank)>& options,
    const std::function<Training(int rank)>& training = [](int) { return training_of_line(); }) {
  return testing::run_ranks(ranks, "shm", [&](const Group& group) {
    make_strategy("parameter_server", training(group->rank()), options_of(group, options(group->rank())));
  });
}

TEST(ParameterServer, OptionsThatAreRefused) {
  const auto same = [](const ParameterServerOptions& options) { return [options](int) { return options; }; };
  EXPECT_THAT(refusals(2, same({.servers = 1, .staleness = -1})), Each(HasSubstr(".staleness is -1: 0 is synchronous")));
  EXPECT_THAT(refusals(2, same({.servers = 2})), Each(HasSubstr(".servers is 2 with 2 ranks in all: from 1 on, and at least one rank")));
  EXPECT_THAT(refusals(2, same({})), Each(AllOf(HasSubstr("which ranks are servers?"), HasSubstr("lockrun --ps P --workers W"))));
  EXPECT_THAT(refusals(4, same({.servers = 3})), Each(HasSubstr("3 servers for 2 parameters: ps:2 would hold none")));
  EXPECT_THAT(refusals(3, [](int rank) { return ParameterServerOptions{.servers = 1, .staleness = rank == 2 ? 3 : 0}; }),
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

TEST(ParameterServer, CallsOfTheOtherJobAreRefused) {
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("parameter_server", training_of_line(), options_of(group, {.servers = 1}));
    if (strategy->is_server()) {
      EXPECT_EQ(strategy->workers(), nullptr);
      EXPECT_THAT(message_of([&] { line_step(*strategy, 0, 0); }),
                  HasSubstr("ps:0 (rank 1) trains on no samples: where is_server() call serve()"));
      EXPECT_THAT(message_of([&] { strategy->model(); }), HasSubstr("ps:0 (rank 1) holds a part of the parameters: worker 0's model()"));
      EXPECT_EQ(strategy->optimizer().kind(), "SGD");
      strategy->serve();
      EXPECT_THAT(message_of([&] { strategy->serve(); }), HasSubstr("ps:0: serve() has run"));
      return;
    }
    EXPECT_THAT(message_of([&] { strategy->serve(); }), HasSubstr("parameter_server: serve() is for a server"));
    EXPECT_THAT(message_of([&] { strategy->optimizer(); }), HasSubstr("worker:0 (rank 0) has no optimizer, the servers have"));
    EXPECT_THAT(message_of([&] { strategy->set_lr(-1); }), HasSubstr("a learning rate of -1"));
  }));
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
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "chief"}, {"LOCKSTEP_TASK_INDEX", "0"}}), HasSubstr("LOCKSTEP_JOB=chief: ps or worker is needed"));
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "ps"}}), HasSubstr("LOCKSTEP_JOB=ps is set but LOCKSTEP_TASK_INDEX is not"));
  EXPECT_THAT(fault_of({{"LOCKSTEP_JOB", "ps"}, {"LOCKSTEP_TASK_INDEX", "-1"}}), HasSubstr("LOCKSTEP_TASK_INDEX"));
}

std::vector<NamedTensor> tensors_of(const std::vector<std::int64_t>& counts) {
  std::vector<NamedTensor> tensors;
  for (const std::int64_t count : counts) tensors.push_back({"p" + std::to_string(tensors.size()), Tensor::zeros({count})});
  return tensors;
}

TEST(ShardParameters, ByTurnsOrToWhoeverHoldsTheFewestBytes) {
  const auto tensors = tensors_of({100, 10, 100, 10, 30});
  EXPECT_THAT(shard_parameters(tensors, 2, Sharding::kRoundRobin), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(shard_parameters(tensors, 2, Sharding::kGreedyBytes), ElementsAre(0, 1, 1, 0, 0));
  EXPECT_THAT(shard_parameters(tensors, 1, Sharding::kGreedyBytes), Each(0));
  EXPECT_THAT(shard_parameters(tensors, 5, Sharding::kGreedyBytes), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(message_of([&] { shard_parameters(tensors, 0, Sharding::kRoundRobin); }), HasSubstr("0 servers; at least 1"));
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
