// Checkpoints with the state of torch optimizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/core/error.h"
#include "lockstep/torch_checkpoint.h"
#include "tests/support/temporary.h"
#include "tests/torch/torch_ranks.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

struct AdamTraining {
  explicit AdamTraining(std::shared_ptr<ProcessGroup> group, double first = 0)
      : model(first), ddp(torch_ddp(model, group)), group(std::move(group)) {}
  void step(int number) {
    adam.zero_grad();
    ddp(batch_of(*group, number, {3, 3, 4, 4})).square().mean().backward();
    adam.step();
  }
  TorchCheckpointParts parts(std::int64_t steps = 0) {
    return {.model = *model, .optimizer = adam, .group = group, .step = steps};
  }
  SmallConv model;
  TorchDdp<SmallConvImpl> ddp;
  std::shared_ptr<ProcessGroup> group;
  torch::optim::Adam adam{model->parameters(), torch::optim::AdamOptions(0.01)};
};

TEST(TorchCheckpoint, ContinuesWithTheSameBits) {
  const std::string folder = temporary("torch-checkpoint");
  expect_no_failures(run_torch_ranks(2, [&](auto group) {
    AdamTraining one(group);
    EXPECT_EQ(load_torch_checkpoint(folder, one.parts()), std::nullopt);
    for (int step = 0; step < 3; ++step) one.step(step);
    const std::string path = save_torch_checkpoint(folder, one.parts(3));
    EXPECT_EQ(path.empty(), group->rank() != 0);
    for (int step = 3; step < 6; ++step) one.step(step);
    AdamTraining two(group, 7);
    EXPECT_EQ(load_torch_checkpoint(folder, two.parts()), 3);
    for (int step = 3; step < 6; ++step) two.step(step);
    const auto expected = one.model->named_parameters(), got = two.model->named_parameters();
    for (const auto& parameter : expected)
      EXPECT_TRUE(torch::equal(parameter.value(), got[parameter.key()])) << parameter.key();
    EXPECT_TRUE(torch::equal(one.model->norm->running_var, two.model->norm->running_var));
    EXPECT_EQ(two.model->norm->num_batches_tracked.template item<std::int64_t>(), 6);
  }));
  fs::remove_all(folder);
}

// The momentum that the optimizer has in memory does not survive the way back to a step that had none.
TEST(TorchCheckpoint, GoesBackInARunningProgram) {
  const std::string folder = temporary("torch-back");
  expect_no_failures(run_torch_ranks(2, [&](auto group) {
    AdamTraining training(group);
    save_torch_checkpoint(folder, training.parts(0));
    training.step(0);
    const torch::Tensor once = training.model->conv->weight.detach().clone();
    EXPECT_EQ(load_torch_checkpoint(folder, training.parts()), 0);
    training.step(0);
    EXPECT_TRUE(torch::equal(training.model->conv->weight, once));
  }));
  EXPECT_THAT(run_torch_ranks(2,
                              [&](auto group) {
                                SmallConv model;
                                torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
                                load_torch_checkpoint(folder, {.model = *model, .optimizer = sgd, .group = group});
                              }),
              Each(HasSubstr("has the state of a torch::optim::Adam, and the optimizer is a torch::optim::SGD")));
  fs::remove_all(folder);
}

TEST(TorchCheckpoint, KeepsTheNewest) {
  const std::string folder = temporary("torch-checkpoints");
  expect_no_failures(run_torch_ranks(2, [&](auto group) {
    AdamTraining training(group);
    for (int step = 0; step < 12; step += 3) {
      training.step(step);
      save_torch_checkpoint(folder, training.parts(step));
    }
    EXPECT_EQ(load_torch_checkpoint(folder, training.parts()), 9);
  }));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("latest", "step-000000000006.pt", "step-000000000009.pt"));
  fs::remove_all(folder);
}

TEST(TorchCheckpoint, DamageAndOtherModelsAreNamedOnAllRanks) {
  const std::string folder = temporary("torch-damage");
  std::string path;
  expect_no_failures(run_torch_ranks(2, [&](auto group) {
    AdamTraining training(group);
    const std::string written = save_torch_checkpoint(folder, training.parts(1));
    if (group->rank() == 0) path = written;
  }));
  EXPECT_THAT(run_torch_ranks(2,
                              [&](auto group) {
                                TwoHeads other;
                                torch::optim::SGD sgd(other->parameters(), torch::optim::SGDOptions(0.1));
                                load_torch_checkpoint(folder, {.model = *other, .optimizer = sgd, .group = group});
                              }),
              Each(HasSubstr("has 9 parameters and buffers, and the model has 6")));
  EXPECT_THAT(run_torch_ranks(2,
                              [&](auto group) {
                                AdamTraining training(group);
                                training.model->to(torch::kFloat64);
                                load_torch_checkpoint(folder, training.parts());
                              }),
              Each(HasSubstr("'conv.weight' is Float (8, 3, 3, 3) there, and Double (8, 3, 3, 3) in the model")));
  EXPECT_THAT(run_torch_ranks(2,
                              [&](auto group) {
                                AdamTraining training(group);
                                save_torch_checkpoint(folder, training.parts(group->rank()));
                              }),
              Each(HasSubstr("at different steps")));
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(200);
    file.put('!');
  }
  const auto load = [&](auto group) {
    AdamTraining training(group);
    load_torch_checkpoint(folder, training.parts());
  };
  EXPECT_THAT(run_torch_ranks(2, load), Each(HasSubstr(path + ": is damaged: its SHA-256 is not that in")));
  std::ofstream(folder + "/latest") << std::string(80, 'x') << "\n";
  EXPECT_THAT(run_torch_ranks(2, load), Each(HasSubstr("/latest: is damaged: expected a SHA-256 and a file's name")));
  fs::remove_all(folder);
}

// A folder that cannot be made: the error is one of all ranks, and the group goes on.
TEST(TorchCheckpoint, ADiskThatFails) {
  const std::string file = temporary("torch-no-folder");
  std::ofstream(file) << "a file";
  expect_no_failures(run_torch_ranks(2, [&](auto group) {
    AdamTraining training(group);
    EXPECT_THROW(save_torch_checkpoint(file, training.parts(1)), FileError);
    EXPECT_THROW(save_torch_checkpoint(file, training.parts(-1)), InvalidArgument);
    EXPECT_THROW(load_torch_checkpoint(std::string(5000, 'x'), training.parts()), FileError);
    TorchCheckpointParts alone = training.parts(1);
    alone.group = nullptr;
    EXPECT_THROW(save_torch_checkpoint(file, alone), InvalidArgument);
    EXPECT_THROW(load_torch_checkpoint(file, alone), InvalidArgument);
    group->barrier();
  }));
  fs::remove(file);
}

}  // namespace
}  // namespace lockstep::testing
