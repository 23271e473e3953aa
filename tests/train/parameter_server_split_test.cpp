// parameter_server: tensors that are split over servers, and workers with several devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/message_of.h"
#include "tests/train/ddp_outcome.h"
#include "tests/train/parameter_server_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<NamedTensor> tensors_of(const std::vector<lockstep::Shape>& shapes) {
  std::vector<NamedTensor> tensors;
  for (const lockstep::Shape& shape : shapes)
    tensors.push_back({"p" + std::to_string(tensors.size()), Tensor::zeros(shape)});
  return tensors;
}

// TensorFlow's MinSizePartitioner: as many pieces as servers, unless they had fewer bytes than the bound, or no row.
TEST(ShardPieces, ATensorIsSplitByRowsIntoPiecesOfAtLeastTheBound) {
  const auto tensors = tensors_of({{10, 8}, {4}, {1, 64}, {9, 8}});
  EXPECT_EQ(describe_shards(tensors, 3, Sharding::kRoundRobin, 100),
            "parameter  bytes       server\n"
            "p0[0:3]    96          ps:0\n"
            "p0[3:6]    96          ps:1\n"
            "p0[6:]     128         ps:2\n"
            "p1         16          ps:0\n"
            "p2         256         ps:1\n"
            "p3[0:4]    128         ps:2\n"
            "p3[4:]     160         ps:0\n"
            "all of     272         ps:0\n"
            "all of     352         ps:1\n"
            "all of     256         ps:2\n");
  EXPECT_EQ(shard_pieces(tensors, 3, Sharding::kRoundRobin, 0).size(), 4U) << "0: tensors stay whole";
  std::int64_t floats = 0;
  for (const ParameterPiece& piece : shard_pieces(tensors, 3, Sharding::kGreedyBytes, 1)) {
    EXPECT_EQ(piece.count % (piece.parameter == 2 ? 64 : piece.parameter == 1 ? 1 : 8), 0) << "entire rows";
    floats += piece.count;
  }
  EXPECT_EQ(floats, 80 + 4 + 64 + 72);
}

TEST(ShardPieces, OneTensorFeedsSeveralServers) {
  const auto one = tensors_of({{16, 4}});
  EXPECT_EQ(shard_pieces(one, 4, Sharding::kGreedyBytes, 64).size(), 4U);
  EXPECT_THAT(message_of([&] { shard_pieces(one, 4, Sharding::kRoundRobin, 100); }),
              HasSubstr("4 servers for 2 pieces of parameters: ps:2 would hold none"));
}

float take_part(Strategy& strategy, int step, int worker, int workers) {
  const auto batch = batch_of(step);
  const std::int64_t each = kBatch / workers;
  const Range rows{.start = worker * each, .stop = (worker + 1) * each};
  return strategy.step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
}

std::vector<float> train_net(int workers, const ParameterServerOptions& options) {
  std::vector<float> weights;
  testing::expect_all_well(run_job(workers, options, [&](Strategy& strategy, int worker) {
    manual_seed(11);
    set_first_sample(worker * (kBatch / workers));
    for (int step = 0; step < kSteps; ++step) take_part(strategy, step, worker, workers);
    if (worker == 0) weights = weights_of(strategy.model());
  }));
  return weights;
}

TEST(SplitTensors, ReachTheWeightsOfDdpAndOfWholeTensors) {
  const std::vector<float> ddp = train_by_ddp(2).weights;
  EXPECT_EQ(train_net(2, {.servers = 2, .min_shard_bytes = 64}), ddp);
  EXPECT_EQ(train_net(2, {.servers = 3, .sharding = Sharding::kGreedyBytes, .min_shard_bytes = 16}), ddp);
}

// Divides each gradient by its norm, as layer-wise rates do.
class NormedSgd : public optim::Optimizer {
 public:
  explicit NormedSgd(std::vector<NamedTensor> parameters)
      : Optimizer(std::move(parameters),
                  {.kind = "NormedSgd", .lr = 0.1F, .weight_decay = 0, .loss_scaler = nullptr, .elementwise = false}) {}

 protected:
  void update(std::span<const UpdateTensor> tensors, const GroupStep& group, const KernelTable&, Stream&) override {
    for (const UpdateTensor& tensor : tensors) {
      float squares = 1e-6F;
      for (std::int64_t i = 0; i < tensor.count; ++i) squares += tensor.grad[i] * tensor.grad[i];
      for (std::int64_t i = 0; i < tensor.count; ++i)
        tensor.weight[i] -= *group.lr * tensor.grad[i] / std::sqrt(squares);
    }
  }
};

TEST(SplitTensors, AnOptimizerThatNeedsWholeTensorsIsRefusedByName) {
  const auto normed = [](int) {
    Training training = training_of_net();
    training.optimizer = [](std::vector<NamedTensor> parameters) -> std::unique_ptr<optim::Optimizer> {
      return std::make_unique<NormedSgd>(std::move(parameters));
    };
    return training;
  };
  const auto one_step = [](Strategy& strategy, int worker) { take_part(strategy, 0, worker, 1); };
  EXPECT_THAT(run_job(1, {.servers = 2, .min_shard_bytes = 64}, one_step, normed),
              Each(AllOf(HasSubstr("NormedSgd is not elementwise"),
                         HasSubstr("is split over servers (.min_shard_bytes = 64)"))));
  testing::expect_all_well(run_job(1, {.servers = 2}, one_step, normed));
}

// -- several devices a worker. The program has split the CPU into four.

struct DevicesOutcome {
  std::vector<float> weights, losses;
  std::vector<DeviceTraffic> traffic;
};

DevicesOutcome train_on_devices(int workers, int devices) {
  DevicesOutcome outcome;
  testing::expect_all_well(testing::run_ranks(workers + 1, "shm", [&](const Group& group) {
    StrategyOptions options = options_of(group, {.servers = 1});
    if (group->rank() < workers) options.devices = on_cpus(group->rank() * devices, devices).devices;
    const auto strategy = make_strategy("parameter_server", training_of_net(), options);
    if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
    manual_seed(11);
    set_first_sample(group->rank() * (kBatch / workers));
    EXPECT_EQ(strategy->devices().size(), static_cast<std::size_t>(devices));
    for (int step = 0; step < kSteps; ++step) {
      const float loss = take_part(*strategy, step, group->rank(), workers);
      if (group->rank() == 0) outcome.losses.push_back(loss);
    }
    if (group->rank() != 0) return;
    outcome.weights = weights_of(strategy->model());
    outcome.traffic = strategy->traffic();
  }));
  return outcome;
}

TEST(SeveralDevices, OneWorkerWithTwoReachesTheWeightsOfDdpWithTwoRanks) {
  const DevicesOutcome two = train_on_devices(1, 2);
  const Outcome ddp = train_by_ddp(2);
  EXPECT_EQ(two.weights, ddp.weights) << "the same sums in the same order";
  EXPECT_NEAR(two.losses.back(), ddp.last_loss, 1e-5F);
  ASSERT_EQ(two.traffic.size(), 2U);
  std::uint64_t bytes = 0;
  for (const NamedTensor& each : training_of_net().model()->named_parameters()) bytes += each.tensor.bytes();
  EXPECT_GE(two.traffic[1].received, kSteps * bytes) << "the weights, from the first device";
  EXPECT_GE(two.traffic[0].received, 2 * kSteps * bytes) << "the server's weights, and the other device's gradients";
}

TEST(SeveralDevices, TwoWorkersWithTwoEachAreFourRanksOfDdp) {
  const std::vector<float> four = train_on_devices(2, 2).weights;
  EXPECT_LT(largest_difference(four, train_by_ddp(4).weights), 1e-5F);
}

// Parts of two and of one sample, and a worker with weight 0: the mean over all samples.
TEST(SeveralDevices, ABatchThatTheyDoNotDivideIsWeightedBySamples) {
  const auto train = [](int devices) {
    std::vector<float> weights;
    testing::expect_all_well(testing::run_ranks(3, "shm", [&](const Group& group) {
      StrategyOptions options = options_of(group, {.servers = 1});
      if (group->rank() == 0) options.devices = on_cpus(0, devices).devices;
      const auto strategy = make_strategy("parameter_server", training_of_line(), options);
      if (auto* const server = strategy->as<ParameterHolder>()) return server->serve();
      const Tensor xs = Tensor::from<float>(std::vector<float>{-1, 0.5F, 2}, {3, 1});
      const Tensor ys = Tensor::from<float>(std::vector<float>{1, 0.25F, -2}, {3, 1});
      EXPECT_THAT(message_of([&] { strategy->weighted_step(xs, ys, -1); }),
                  HasSubstr("got weight -1; expected a finite"));
      strategy->weighted_step(xs, ys, group->rank() == 0 ? 2 : 0);
      if (group->rank() == 0) weights = weights_of(strategy->model());
    }));
    return weights;
  };
  const std::vector<float> one = train(1);
  EXPECT_LT(largest_difference(train(2), one), 1e-6F);
  std::vector<float> alone;
  testing::expect_all_well(testing::run_ranks(1, "shm", [&](const Group& group) {
    const auto strategy = make_strategy("ddp", training_of_line(), {.group = group});
    strategy->step(Tensor::from<float>(std::vector<float>{-1, 0.5F, 2}, {3, 1}),
                   Tensor::from<float>(std::vector<float>{1, 0.25F, -2}, {3, 1}));
    alone = weights_of(strategy->model());
  }));
  EXPECT_LT(largest_difference(one, alone), 1e-6F);
}

TEST(SeveralDevices, ADeviceThatComesTwiceIsRefused) {
  EXPECT_THAT(testing::run_ranks(2, "shm",
                                 [&](const Group& group) {
                                   StrategyOptions options = options_of(group, {.servers = 1});
                                   const auto cpu = on_cpus(0, 1).devices.front();
                                   if (group->rank() == 0) options.devices = {cpu, cpu};
                                   make_strategy("parameter_server", training_of_net(), options);
                                 }),
              Each(HasSubstr("comes twice")));
}

}  // namespace
}  // namespace lockstep::train
