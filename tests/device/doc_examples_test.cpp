// The code that docs/ shows, run on a GPU made of threads. tests/architecture compares the two word for word: change both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/conformance/table_store.h"
#include "tests/support/device_training.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

namespace ls = lockstep;

// What the pieces of code take for granted.
struct Around {
  explicit Around(Device& device)
      : group(ls::ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &device})) {
    ls::manual_seed(3);
    net = std::make_unique<SmallNet>();
    net->to(device);
    ddp.emplace(*net, group);
    const ls::data::Batch first = small_batch(0);
    images = first.inputs.to(device);
    labels = first.targets.to(device);
  }
  std::shared_ptr<ls::ProcessGroup> group;
  std::unique_ptr<SmallNet> net;
  std::optional<ls::DistributedDataParallel> ddp;
  ls::Tensor images, labels;
};

using Weights = std::vector<std::vector<float>>;

float largest_difference(const Weights& a, const Weights& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j) largest = std::max(largest, std::abs(a[i][j] - b[i][j]));
  return largest;
}

// docs/precision.md
void step_in_float16(ls::DistributedDataParallel& ddp, const ls::Tensor& images, const ls::Tensor& labels) {
  ls::AutoCast half(ls::DType::kFloat16);  // of this thread, while it lives
  ls::optim::LossScaler scaler;            // float16 alone needs it
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f, .loss_scaler = &scaler});

  const auto loss = ls::nn::cross_entropy(ddp(images), labels);
  sgd.zero_grad();
  scaler.scale(loss).backward();
  sgd.step();
}

TEST(DocExamples, AStepInFloat16UpdatesAsOneInFloat32) {
  RecordingDevice device;
  Around half(device), full(device);
  const Weights before = weights_of(*full.net);
  ls::optim::SGD sgd(full.ddp->parameters(), {.lr = 0.1f, .momentum = 0.9f});
  train_step([&](const ls::Tensor& x) { return (*full.ddp)(x); }, sgd, {full.images, full.labels});
  step_in_float16(*half.ddp, half.images, half.labels);
  const float update = largest_difference(weights_of(*full.net), before);
  const float difference = largest_difference(weights_of(*full.net), weights_of(*half.net));
  EXPECT_GT(update, 0);
  EXPECT_GT(difference, 0) << "16 bits round";
  EXPECT_LT(difference, 0.05f * update);
}

// docs/gpu.md
ls::CapturedStep::Counts train_by_graph(ls::DistributedDataParallel& ddp, ls::optim::SGD& sgd, const ls::Tensor& images,
                                        const ls::Tensor& labels, std::vector<ls::data::Batch>& loader) {
  auto step = ddp.capture([&] {  // images and labels: tensors on the GPU, made before
    auto loss = ls::nn::cross_entropy(ddp(images), labels);
    sgd.zero_grad();
    loss.backward();
    sgd.step();
    return loss;
  });
  for (auto& batch : loader) {  // .drop_last = true: a graph has one shape
    images.copy_from(batch.inputs);
    labels.copy_from(batch.targets);
    auto loss = step();
  }
  return step.counts();
}

TEST(DocExamples, GraphModeTrainsAsTheStepAsWritten) {
  RecordingDevice device;
  Around graph(device), plain(device);
  std::vector<ls::data::Batch> loader;
  for (int number = 0; number < 7; ++number) loader.push_back(small_batch(number));
  ls::optim::SGD by_graph(graph.ddp->parameters(), {.lr = 0.05f}), eager(plain.ddp->parameters(), {.lr = 0.05f});
  const auto counts = train_by_graph(*graph.ddp, by_graph, graph.images, graph.labels, loader);
  EXPECT_EQ(counts.eager, 3U);
  EXPECT_EQ(counts.recorded, 1U);
  EXPECT_EQ(counts.replayed, 3U);
  for (const ls::data::Batch& batch : loader)
    train_step([&](const ls::Tensor& x) { return (*plain.ddp)(x); }, eager, {batch.inputs.to(device), batch.targets.to(device)});
  EXPECT_EQ(weights_of(*graph.net), weights_of(*plain.net));
}

}  // namespace
}  // namespace lockstep::testing
