// DistributedDataParallel on simulated GPUs, with the nccl backend and a stub of NCCL: the numbers, the order of queued
// work, and that the host never waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "lockstep/ddp/ddp.h"
#include "lockstep/train/checkpoint.h"
#include "tests/support/device_training.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<double> kSmallBuckets{in_mib(256), in_mib(512)};  // several buckets

data::Batch batch_of(int step, int rank, int ranks, Device& device) {
  const data::Batch batch = small_batch(step * ranks + rank);
  return {batch.inputs().to(device), batch.targets().to(device)};
}

// The same training written out: a net for each rank, gradients averaged by hand.
Training train_by_hand(int ranks, int steps) {
  std::vector<std::unique_ptr<SmallNet>> nets;
  std::vector<std::unique_ptr<optim::SGD>> optimizers;
  for (int rank = 0; rank < ranks; ++rank) {
    manual_seed(3);
    nets.push_back(std::make_unique<SmallNet>());
    nets.back()->to(plain_cpu());
    optimizers.push_back(std::make_unique<optim::SGD>(nets.back()->named_parameters(),
                                                      optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F}));
  }
  Training result;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      const data::Batch batch = batch_of(step, rank, ranks, plain_cpu());
      const Tensor loss = nn::cross_entropy((*nets[static_cast<std::size_t>(rank)])(batch.inputs()), batch.targets());
      optimizers[static_cast<std::size_t>(rank)]->zero_grad();
      loss.backward();
      if (rank == 0) result.losses.push_back(loss.item());
    }
    for (std::size_t p = 0; p < nets[0]->parameters().size(); ++p) {
      std::vector<float> sum(static_cast<std::size_t>(nets[0]->parameters()[p].count()));
      for (const auto& net : nets)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += grad(net->parameters()[p]).span<float>()[i];
      for (const auto& net : nets)
        for (std::size_t i = 0; i < sum.size(); ++i)
          grad(net->parameters()[p]).span<float>()[i] = sum[i] * (1 / static_cast<float>(ranks));
    }
    for (const auto& optimizer : optimizers) optimizer->step();
  }
  result.weights = weights_of(*nets[0]);
  return result;
}

// One rank of a training on its device.
struct Rank {
  Rank(const std::shared_ptr<ProcessGroup>& group, RecordingDevice& device, std::uint64_t seed = 3)
      : group(group), device(device) {
    manual_seed(seed);
    net = std::make_unique<SmallNet>();
    net->to(device);
    ddp = std::make_unique<DistributedDataParallel>(*net, group,
                                                    DistributedDataParallelOptions{.bucket_cap_mb = kSmallBuckets});
    sgd = std::make_unique<optim::SGD>(ddp->parameters(), optim::SGDOptions{.lr = 0.05F, .momentum = 0.9F});
  }
  Tensor step(const data::Batch& batch) {
    return train_step([&](const Tensor& x) { return (*ddp)(x); }, *sgd, batch);
  }
  data::Batch batch(int number) { return batch_of(number, group->rank(), group->world_size(), device); }

  std::shared_ptr<ProcessGroup> group;
  RecordingDevice& device;
  std::unique_ptr<SmallNet> net;
  std::unique_ptr<DistributedDataParallel> ddp;
  std::unique_ptr<optim::SGD> sgd;
};

// Sums of four ranks follow a ring, as NCCL's do, so their last bits differ.
TEST(DeviceDdp, RanksLearnAsATrainingByHand) {
  for (const int ranks : {1, 2, 4}) {
    Training there;
    EXPECT_THAT(run_gpu_ranks(ranks,
                              [&](auto group, RecordingDevice& device) {
                                Rank rank(group, device);
                                std::vector<Tensor> losses;
                                for (int step = 0; step < 5; ++step) losses.push_back(rank.step(rank.batch(step)));
                                check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                                if (group->rank() != 0) return;
                                there.weights = weights_of(*rank.net);
                                for (const Tensor& loss : losses) there.losses.push_back(loss.item());
                              }),
                Each(""));
    const Training expected = train_by_hand(ranks, 5);
    if (ranks <= 2) {
      EXPECT_EQ(there, expected) << ranks << " ranks";
      continue;
    }
    ASSERT_EQ(there.weights.size(), expected.weights.size());
    for (std::size_t p = 0; p < expected.weights.size(); ++p)
      for (std::size_t i = 0; i < expected.weights[p].size(); ++i)
        ASSERT_NEAR(there.weights[p][i], expected.weights[p][i], 1e-5F) << "parameter " << p << ", element " << i;
  }
}

TEST(DeviceDdp, AWorldOfOneNeedsNoNccl) {
  RecordingDevice device;
  Rank rank(group_of_one(device), device);
  Training there;
  std::vector<Tensor> losses;
  for (int step = 0; step < 5; ++step) losses.push_back(rank.step(rank.batch(step)));
  for (const Tensor& loss : losses) there.losses.push_back(loss.item());
  there.weights = weights_of(*rank.net);
  EXPECT_EQ(there, train_by_hand(1, 5));
  EXPECT_THAT(device.log(), Not(Contains(HasSubstr("nccl"))));
}

TEST(DeviceDdp, TheHostFinishesAStepWhileTheDeviceIsHeld) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              Rank rank(group, device);
                              rank.step(rank.batch(0));  // NCCL's first calls may wait for the peers
                              const data::Batch batch = rank.batch(1);
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              Tensor loss;
                              for (int step = 0; step < 3; ++step) loss = rank.step(batch);
                              EXPECT_EQ(device.counts().host_waits, 0);
                              group->barrier();  // all ranks are through, and no device has begun
                              device.release_default_stream();
                              EXPECT_GT(loss.item(), 0);
                            }),
              Each(""));
}

std::size_t first(const std::vector<std::string>& log, const std::string& part) {
  const auto found = std::find_if(log.begin(), log.end(),
                                  [&](const std::string& line) { return line.find(part) != std::string::npos; });
  return static_cast<std::size_t>(found - log.begin());
}
std::size_t last(const std::vector<std::string>& log, const std::string& part) {
  const auto found = std::find_if(log.rbegin(), log.rend(),
                                  [&](const std::string& line) { return line.find(part) != std::string::npos; });
  return static_cast<std::size_t>(log.rend() - found) - 1;
}

// One step of two ranks as the host queued it on each, while the device was held: work that is done already needs no
// event.
void expect_overlap(const std::vector<std::string>& log, std::size_t buckets) {
  const std::size_t first_reduced = first(log, "ncclAllReduce"), last_reduced = last(log, "ncclAllReduce");
  ASSERT_LT(first_reduced, log.size());
  const auto reductions =
      std::count_if(log.begin(), log.end(), [](const auto& line) { return line.find("ncclAllReduce") != line.npos; });
  EXPECT_EQ(static_cast<std::size_t>(reductions), buckets);
  EXPECT_THAT(log, Not(Contains("stream 0: ncclAllReduce"))) << "on a stream of its own";
  EXPECT_LT(first_reduced, last(log, "stream 0: conv2d_backward_weights"));
  // Each bucket waits for the work on the default stream at that time, and records a mark for which the default stream
  // waits.
  const std::string stream = log[first_reduced].substr(0, log[first_reduced].find(':'));
  EXPECT_LT(first(log, "stream 0: record"), first(log, stream + ": wait"));
  EXPECT_LT(first(log, stream + ": wait"), first_reduced);
  EXPECT_LT(last_reduced, last(log, stream + ": record"));
  EXPECT_LT(last(log, stream + ": record"), last(log, "stream 0: wait"));
  EXPECT_LT(last(log, "stream 0: wait"), first(log, "stream 0: sgd_step"));
  EXPECT_EQ(static_cast<std::size_t>(std::count(log.begin(), log.end(), "stream 0: wait")), buckets);
}

TEST(DeviceDdp, BucketsLeaveWhileBackwardIsQueuedAndTheOptimizerComesBehindThemByEvents) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              Rank rank(group, device);
                              const data::Batch batch = rank.batch(1);
                              rank.step(batch);  // plans the buckets again
                              const std::size_t buckets = rank.ddp->reducer().buckets().size();
                              ASSERT_GE(buckets, 3u);
                              device.default_stream().synchronize();
                              device.clear_log();
                              device.hold_default_stream();
                              rank.step(batch);
                              const auto log = device.log();
                              group->barrier();
                              device.release_default_stream();
                              expect_overlap(log, buckets);
                            }),
              Each(""));
}

// Parameters that a pass does not reach, and buffers that are sent before it, also on a device.
struct Unreached : nn::Module {
  nn::Linear used{4, 3}, unused{4, 3};
  Tensor statistics = Tensor::full({5}, 0);
  Unreached() {
    add("used", used);
    add("unused", unused);
    add_buffer("statistics", statistics);
  }
  Tensor forward(const Tensor& x) override { return used(x); }
};

TEST(DeviceDdp, MissingGradientsAndBuffersMakeNoHostWait) {
  EXPECT_THAT(run_gpu_ranks(
                  2,
                  [&](auto group, RecordingDevice& device) {
                    Unreached net;
                    net.to(device);
                    DistributedDataParallel ddp(net, group, {.static_graph = true});
                    optim::SGD sgd(ddp.parameters(), {.lr = 0.1F});
                    const data::Batch batch{Tensor::full({2, 4}, 1, device), Tensor::zeros({2}, DType::kInt64, device)};
                    const auto forward = [&](const Tensor& x) { return ddp(x); };
                    train_step(forward, sgd, batch);
                    net.statistics.fill(static_cast<float>(group->rank() + 7));
                    device.default_stream().synchronize();
                    const std::vector<float> before = values_of(net.unused.weight);
                    device.clear_log();
                    device.hold_default_stream();
                    train_step(forward, sgd, batch);
                    EXPECT_EQ(device.counts().host_waits, 0);
                    group->barrier();
                    device.release_default_stream();
                    EXPECT_THAT(values_of(net.statistics), Each(7.0F)) << "rank 0's";
                    EXPECT_EQ(values_of(net.unused.weight), before);
                    EXPECT_FALSE(has_grad(net.unused.weight));
                  }),
              Each(""));
}

TEST(DeviceDdp, GradientsGatherWithoutCommunicationUnderNoSync) {
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              Rank rank(group, device);
                              device.clear_log();
                              const auto no_sync = rank.ddp->no_sync();
                              const data::Batch batch = rank.batch(0);
                              nn::cross_entropy((*rank.ddp)(batch.inputs()), batch.targets()).backward();
                              EXPECT_THAT(device.log(), Not(Contains(HasSubstr("nccl"))));
                            }),
              Each(""));
}

TEST(DeviceDdp, AModuleThatMovesAfterItWasWrappedIsNamed) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  SmallNet net;
  DistributedDataParallel ddp(net, group);
  net.to(device);
  EXPECT_THAT(message_of([&] { ddp(small_batch(0).inputs().to(device)); }),
              AllOf(HasSubstr("'conv1.weight' is on cuda:0, but was on cpu"), HasSubstr("then wrap it")));
}

TEST(DeviceDdp, AModuleThatMovedAndCameBackIsNamed) {
  RecordingDevice device;
  const auto group = group_of_one(device);
  SmallNet net;
  DistributedDataParallel ddp(net, group);
  net.to(device);
  net.to(cpu_device());
  EXPECT_THAT(message_of([&] { ddp(small_batch(0).inputs()); }),
              AllOf(HasSubstr("'conv1.weight' was moved, so its gradient is no longer in its bucket"),
                    HasSubstr("then wrap it")));
}

TEST(DeviceDdp, HashesDoNotDependOnTheDevice) {
  RecordingDevice device;
  manual_seed(3);
  SmallNet net;
  const std::string here = hash_of(net.named_parameters());
  net.to(device);
  EXPECT_EQ(hash_of(net.named_parameters()), here);
}

TEST(DeviceDdp, ReplicasThatDifferAreNamedWithTheirRank) {
  EXPECT_THAT(run_gpu_ranks(3,
                            [&](auto group, RecordingDevice& device) {
                              Rank rank(group, device);
                              if (group->rank() == 2) rank.net->parameters()[0].fill(1);
                              check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                            }),
              Each(HasSubstr("weights of rank 2 differ from rank 0's")));
}

// Two ranks on GPUs save; one rank on the CPU continues, and saves; two ranks on GPUs continue from there.
TEST(DeviceDdp, CheckpointsMoveBetweenTwoRanksOnGpusAndOneOnTheCpu) {
  const std::string folder = temporary("device-ddp-checkpoint");
  std::vector<std::vector<float>> saved, continued;
  EXPECT_THAT(
      run_gpu_ranks(2,
                    [&](auto group, RecordingDevice& device) {
                      Rank rank(group, device);
                      for (int step = 0; step < 3; ++step) rank.step(rank.batch(step));
                      train::save_checkpoint(
                          folder,
                          {.model = *rank.net, .optimizer = *rank.sgd, .ddp = *rank.ddp, .step = 3, .group = group});
                      if (group->rank() == 0) saved = weights_of(*rank.net);
                    }),
      Each(""));
  {
    manual_seed(50);
    SmallNet net;
    net.to(plain_cpu());
    optim::SGD sgd(net.named_parameters(), {.lr = 0.05F, .momentum = 0.9F});
    ASSERT_TRUE(train::load_checkpoint(folder, {.model = net, .optimizer = sgd}));
    EXPECT_EQ(weights_of(net), saved);
    train_step([&](const Tensor& x) { return net(x); }, sgd, batch_of(3, 0, 1, plain_cpu()));
    continued = weights_of(net);
    train::save_checkpoint(folder, {.model = net, .optimizer = sgd, .step = 4});
  }
  EXPECT_THAT(run_gpu_ranks(2,
                            [&](auto group, RecordingDevice& device) {
                              Rank rank(group, device, 60 + static_cast<std::uint64_t>(group->rank()));
                              const auto state = train::load_checkpoint(
                                  folder, {.model = *rank.net, .optimizer = *rank.sgd, .group = group});
                              ASSERT_TRUE(state);
                              EXPECT_EQ(state->step, 4);
                              EXPECT_EQ(weights_of(*rank.net), continued);
                              rank.step(rank.batch(4));
                              check_replicas_equal(*group, rank.net->named_parameters(), "weights");
                            }),
              Each(""));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
