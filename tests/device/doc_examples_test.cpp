// The code in docs/, run on a simulated GPU. tests/architecture compares the two word for word: change both.
// both.
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

// Variables that the pieces of code use.
struct Around {
  explicit Around(Device& device)
      : group(ls::ProcessGroup::create({0, 1, 0, 1}, std::make_shared<TableStore>(), "token", {.device = &device})) {
    ls::manual_seed(3);
    net = std::make_unique<SmallNet>();
    net->to(device);
    ddp.emplace(*net, group);
    const ls::data::Batch first = small_batch(0);
    images = first.inputs().to(device);
    labels = first.targets().to(device);
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

// docs/gpu.md
void step_in_float16(ls::DistributedDataParallel& ddp, const ls::Tensor& images, const ls::Tensor& labels) {
  ls::AutoCast half(ls::DType::kFloat16);  // applies to this thread while it lives
  ls::optim::LossScaler scaler;            // only float16 needs it
  ls::optim::SGD sgd(ddp.parameters(), {.lr = 0.1f, .momentum = 0.9f, .loss_scaler = &scaler});

  const auto loss = ls::nn::cross_entropy(ddp(images), labels);
  sgd.zero_grad();
  scaler.scale(loss).backward();
  sgd.step();
}

// docs/models.md
TEST(DocExamples, ARecurrentNetworkReadsPaddedSamples) {
  const Tensor x = Tensor::zeros({3, 5, 32});
  const std::vector<std::int64_t> lengths = {5, 2, 4};
  ls::nn::LSTM lstm{32, 64, {.num_layers = 2, .bidirectional = true}};
  const ls::LstmResult result = lstm.run(x, {.lengths = lengths});  // output (N, T, 128); h and c (4, N, 64)
  EXPECT_EQ(result.output.shape(), (Shape{3, 5, 128}));
  EXPECT_EQ(result.c.shape(), (Shape{4, 3, 64}));
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

// docs/models.md
ls::Tensor gradients_of_chosen_tensors(ls::nn::Module& net, const ls::Tensor& images, const ls::Tensor& labels) {
  // Gradients of chosen tensors: here how much the loss depends on the images. No parameter's grad() changes.
  const ls::Tensor x = ls::detach(images);
  ls::require_grad(x);
  const ls::Tensor sensitivity = ls::gradients(ls::nn::cross_entropy(net(x), labels), {x}).front();

  // An activation checkpoint: the tape keeps x, and backward runs the net again.
  const ls::Tensor scores = ls::checkpoint([&](const ls::Tensor& input) { return net(input); }, x);
  const ls::Tensor loss = ls::nn::cross_entropy(scores, labels);
  loss.backward({.retain_graph = true});
  loss.backward();  // adds the same once more, and frees the tape
  EXPECT_FALSE(ls::requires_grad(images));
  const ls::Tensor sum = ls::grad(x).to(ls::cpu_device());
  const ls::Tensor one = sensitivity.to(ls::cpu_device());
  for (std::size_t i = 0; i < sum.span<float>().size(); ++i) EXPECT_EQ(sum.span<float>()[i], 2 * one.span<float>()[i]);
  return sensitivity;
}

TEST(DocExamples, GradientsOfChosenTensorsAreThoseOfBackward) {
  RecordingDevice device;
  Around around(device);
  const ls::Tensor sensitivity =
      gradients_of_chosen_tensors(*around.net, around.images, around.labels).to(ls::cpu_device());
  float largest = 0;
  for (const float value : sensitivity.span<float>()) largest = std::max(largest, std::abs(value));
  EXPECT_GT(largest, 0);
}

// docs/optimizers.md
class Generated : public ls::data::FixedShapeDataset {
 public:
  std::int64_t size() const override { return 10; }
  std::vector<ls::data::TensorSpec> element_spec() const override { return {{{8, 8, 3}}, {{}, ls::DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t, const ls::data::Row& row) const override {
    ls::Philox random(1, static_cast<std::uint64_t>(index));
    for (float& value : row.span<float>(0)) value = random.uniform(-1.f, 1.f);
    row.value<std::int64_t>(1) = index % 5;
  }
};

struct Evaluated {
  std::int64_t samples;
  double accuracy, loss, norm;
};

Evaluated train_with_everything(ls::DistributedDataParallel& ddp, SmallNet& net,
                                const std::shared_ptr<ls::ProcessGroup>& group, const ls::Tensor& images,
                                const ls::Tensor& labels, std::int64_t steps) {
  const Generated test;
  double last_norm = 0;
  // Biases have no weight decay, and learn twice as fast.
  std::vector<ls::NamedTensor> weights = ddp.parameters(), biases;
  for (const auto& parameter : weights)
    if (parameter.tensor.shape().dims() == 1) biases.push_back(parameter);
  std::erase_if(weights, [](const ls::NamedTensor& parameter) { return parameter.tensor.shape().dims() == 1; });
  ls::optim::AdamW adamw(weights, {.weight_decay = 0.1f});
  adamw.add_group({.parameters = biases, .lr_factor = 2, .weight_decay = 0});
  ls::optim::ExponentialMovingAverage ema(ddp.parameters(), {.decay = 0.99});
  const ls::optim::CosineRate rate{.peak = 0.01f, .total_steps = 100, .warmup_steps = 10};

  ls::Tensor norm;  // of the gradients; it stays on the device, so nothing waits for it
  for (std::int64_t step = 0; step < steps; ++step) {
    adamw.set_lr(rate.at(step));
    adamw.zero_grad();
    ls::nn::cross_entropy(ddp(images), labels).backward();
    norm = ls::optim::clip_grad_norm(ddp.parameters(), 1.0f);
    adamw.step();
    ema.update();
  }

  last_norm = norm.item();
  ls::train::Accuracy accuracy;
  ls::train::Mean loss(ls::train::cross_entropy_of_samples);
  const auto averaged = ema.swapped();  // until the end of the block
  const std::int64_t samples =
      ls::train::evaluate(net, test, {&accuracy, &loss}, {.device = &group->local_device(), .group = group});
  return {samples, accuracy.value(), loss.value(), last_norm};
}

// Two runs: the same bits, also of what is on the way.
TEST(DocExamples, AStepWithEverythingTrainsAndIsEvaluated) {
  RecordingDevice device;
  Around there(device), here(device);
  const Weights before = weights_of(*here.net);
  const Evaluated a = train_with_everything(*there.ddp, *there.net, there.group, there.images, there.labels, 12);
  const Evaluated b = train_with_everything(*here.ddp, *here.net, here.group, here.images, here.labels, 12);
  EXPECT_EQ(weights_of(*there.net), weights_of(*here.net));
  EXPECT_NE(weights_of(*here.net), before);
  EXPECT_EQ(a.samples, 10);
  EXPECT_EQ(a.accuracy, b.accuracy);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_GT(a.norm, 0);
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
    images.copy_from(batch.inputs());
    labels.copy_from(batch.targets());
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
    train_step([&](const ls::Tensor& x) { return (*plain.ddp)(x); }, eager,
               {batch.inputs().to(device), batch.targets().to(device)});
  EXPECT_EQ(weights_of(*graph.net), weights_of(*plain.net));
}

}  // namespace
}  // namespace lockstep::testing
