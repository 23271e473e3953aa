// The code that docs/ddp.md, docs/launching.md and docs/troubleshooting.md show, run. tests/architecture compares them
// word for word: change both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/ddp/ranks.h"
#include "tests/support/device_training.h"

namespace lockstep::testing {
namespace {

namespace ls = lockstep;
using ::testing::HasSubstr;

void train_with_sliced_state(ls::nn::Module& net, const std::shared_ptr<ls::ProcessGroup>& group,
                             const ls::Tensor& images, const ls::Tensor& labels, int steps) {
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::AdamW adamw(ddp.parameters(), {.lr = 1e-3f});
  const ls::ZeroRedundancyOptimizer zero(ddp, adamw);
  for (int step = 0; step < steps; ++step) {
    adamw.zero_grad();
    ls::nn::cross_entropy(ddp(images), labels).backward();  // this rank gets what its slices need
    adamw.step();                                           // all ranks: each updates its slices, and gets all weights
  }
}

void train_in_backward(ls::nn::Module& net, const std::shared_ptr<ls::ProcessGroup>& group, const ls::Tensor& images,
                       const ls::Tensor& labels, int steps) {
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f});
  const ls::StepInBackward in_backward(ddp, sgd);
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    ls::nn::cross_entropy(ddp(images), labels).backward();  // and the step
  }
}

int leave_when_asked(const ls::train::CheckpointParts& parts) {
  if (ls::should_stop()) {
    ls::train::save_checkpoint("run/checkpoints", parts);
    return ls::kPreemptedExitCode;
  }
  return 0;
}

void train_guarded(ls::nn::Module& net, const std::shared_ptr<ls::ProcessGroup>& group, const ls::data::Dataset& set) {
  ls::DistributedDataParallel ddp(net, group);
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f});
  const ls::data::DistributedSampler sampler(set.size(), group->place(), {.shuffle = false});
  ls::abort_on_error(*group, [&] {
    for (auto& [inputs, labels] : ls::data::DataLoader(set, sampler, {.batch_size = 8})) {
      sgd.zero_grad();
      ls::nn::cross_entropy(ddp(inputs), labels).backward();
      sgd.step();
    }
  });
}

template <typename Optimizer> void train_plainly(ls::nn::Module& net, const std::shared_ptr<ls::ProcessGroup>& group,
                                                 const ls::Tensor& images, const ls::Tensor& labels, int steps,
                                                 const auto& options) {
  ls::DistributedDataParallel ddp(net, group);
  Optimizer optimizer(ddp.parameters(), options);
  for (int step = 0; step < steps; ++step)
    train_step([&](const Tensor& x) { return ddp(x); }, optimizer, {images, labels});
}

// Returns the weights after `train`, from weights initialised with a fixed seed.
template <typename Train> std::vector<std::vector<float>> weights_after(int rank, Train&& train) {
  ls::manual_seed(3);
  SmallNet net;
  const ls::data::Batch batch = small_batch(rank);
  train(net, batch.inputs(), batch.targets());
  return weights_of(net);
}

TEST(DocExamples, OfStepsHaveTheWeightsOfThePlainOnes) {
  expect_all_well(run_ranks(2, "threads", [](auto group) {
    const int rank = group->rank();
    const auto adamw = weights_after(rank, [&](auto& net, const auto& x, const auto& y) {
      train_plainly<ls::optim::AdamW>(net, group, x, y, 4, ls::optim::AdamWOptions{.lr = 1e-3F});
    });
    EXPECT_EQ(weights_after(
                  rank, [&](auto& net, const auto& x, const auto& y) { train_with_sliced_state(net, group, x, y, 4); }),
              adamw);
    const auto sgd = weights_after(rank, [&](auto& net, const auto& x, const auto& y) {
      train_plainly<ls::optim::SGD>(net, group, x, y, 4, ls::optim::SGDOptions{.lr = 0.1F, .momentum = 0.9F});
    });
    EXPECT_EQ(
        weights_after(rank, [&](auto& net, const auto& x, const auto& y) { train_in_backward(net, group, x, y, 4); }),
        sgd);
  }));
}

// Rank 1's last sample has a label that the model does not know.
TEST(DocExamples, AGuardedLoopTellsAllRanksOfALabelThatOneHas) {
  std::vector<float> points(2 * 32, 0.5F);
  std::vector<std::int64_t> labels(32, 1);
  for (const bool has_mistake : {false, true}) {
    labels.back() = has_mistake ? 7 : 1;
    const ls::data::TensorDataset set(
        {ls::Tensor::from<float>(points, {32, 2}), ls::Tensor::from<std::int64_t>(labels, {32})});
    const std::vector<std::string> failures = run_ranks(2, "threads", [&](auto group) {
      ls::nn::Linear net(2, 3);
      train_guarded(net, group, set);
    });
    EXPECT_THAT(failures[1],
                has_mistake ? HasSubstr("softmax_cross_entropy: label 7 in row 7 is outside 0..2") : HasSubstr(""));
    EXPECT_THAT(failures[0], has_mistake
                                 ? HasSubstr("rank 1 aborted the group: softmax_cross_entropy: label 7 in row 7")
                                 : HasSubstr(""));
    EXPECT_EQ(failures[0].empty(), !has_mistake);
  }
}

TEST(DocExamples, AProgramThatIsAskedToStopSavesAndLeaves) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // a process of its own
  const std::string folder = ::testing::TempDir() + "lockstep-should-stop";
  const auto run = [&folder] {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    std::filesystem::current_path(folder);
    ls::nn::Linear net(2, 2);
    if (leave_when_asked({.model = net, .step = 7}) != 0) ::_exit(1);
    ::raise(SIGUSR2);
    ::_exit(leave_when_asked({.model = net, .step = 8}));
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(ls::kPreemptedExitCode), "");
  ls::nn::Linear net(2, 2);
  const auto saved = ls::train::load_checkpoint(folder + "/run/checkpoints", {.model = net});
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->step, 8);
}

}  // namespace
}  // namespace lockstep::testing
