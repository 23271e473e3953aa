// The code of docs/trainer.md.
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/train/checkpoint_folder.h"

namespace ls = lockstep;

namespace {

TEST(DocExamples, ATrainingWithALog) {
  const ls::testing::Folder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  ls::nn::Linear net(4, 2);
  ls::optim::SGD sgd(net.named_parameters(), {.lr = 0.1f});
  const ls::Tensor inputs = ls::Tensor::full({3, 4}, 1), targets = ls::Tensor::zeros({3, 2}),
                   images = ls::Tensor::full({3, 8, 8, 1}, 0.5f);
  double accuracy = 0.5;

  ls::train::SummaryWriter writer("runs/first");  // on all ranks: rank 0 writes, the others do nothing
  writer.add_graph(net, {1, 4});                  // the shape of a batch
  writer.add_text("notes", "SGD, *no* schedule", /*step=*/0);
  for (std::int64_t step = 0; step < 100; ++step) {
    const ls::Tensor loss = ls::mse_loss(net(inputs), targets);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    if (step % 20 != 0) continue;
    writer.add_scalar("loss/train", loss, step);
    writer.add_images("inputs", images, step);  // (N, H, W, C), from 0 to 1
    for (const auto& [name, parameter] : net.named_parameters()) {
      writer.add_histogram("weights/" + name, parameter, step);
      writer.add_histogram("gradients/" + name, ls::grad(parameter), step);
    }
  }
  writer.add_hparams({{"lr", 0.1}, {"optimizer", "SGD"}, {"batch", 128}}, {{"accuracy/test", accuracy}});
  writer.close();  // waits until all of it is on the disk

  EXPECT_TRUE(std::filesystem::is_directory("runs/first"));
  std::filesystem::current_path(before);
}

TEST(DocExamples, OtherLogs) {
  const ls::testing::Folder folder;
  const std::string log_dir = folder.path() + "/run";
  const bool wants_log = false;
  const std::int64_t step = 0;

  ls::train::SummaryWriter writer = wants_log ? ls::train::SummaryWriter(log_dir) : ls::train::SummaryWriter::none();
  ls::train::SummaryWriter per_rank(log_dir, {.every_rank = true});  // log_dir/rank0, log_dir/rank1, ...
  per_rank.add_scalar("loss/own", 0.25, step);
  ls::train::SummaryWriter resumed(log_dir, {.purge_step = 60});  // the first step that it adds

  EXPECT_FALSE(writer.writes());
  EXPECT_TRUE(std::filesystem::is_directory(log_dir + "/rank0"));
}

}  // namespace
