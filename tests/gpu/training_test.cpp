// Training on the GPU compared with the same training on the CPU: gradients, updates, entire runs, batches,
// checkpoints. float32 without TF32.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/nets.h"

namespace lockstep::testing {
namespace {

using GpuAutograd = GpuTest;
using GpuOptimizer = GpuTest;
using GpuTraining = GpuTest;
using GpuLoader = GpuTest;
using GpuCheckpoint = GpuTest;

// For sums of a few thousand products in another order, relative to the largest value.
constexpr float kGradientBound = 2e-4F;
constexpr float kLossBound = 1e-3F;

void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, float bound,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  float largest = 1e-6F;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], bound * largest) << what << ": element " << i;
}

struct Trainee {
  Trainee(const std::string& name, Device& on, const optim::SGDOptions& options)
      : net_name(name),
        device(on),
        net((manual_seed(5), make_net(name))),
        sgd((net->to(on), net->named_parameters()), options) {}

  Tensor loss(std::int64_t number, std::int64_t count = 16) {
    const Samples samples = make_samples(net_name, number, 0, count);
    return nn::cross_entropy((*net)(samples.inputs.to(device)), samples.labels.to(device));
  }
  float step(std::int64_t number) {
    sgd.zero_grad();
    const Tensor mean = loss(number);
    mean.backward();
    sgd.step();
    return mean.item();
  }

  std::string net_name;
  Device& device;
  std::unique_ptr<nn::Sequential> net;
  optim::SGD sgd;
};

class EveryNet : public GpuTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(GpuTraining, EveryNet, ::testing::Values("convolutional", "perceptron"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(EveryNet, HasTheCpusLossAndGradients) {
  Trainee here(GetParam(), cpu_device(), {}), there(GetParam(), gpu(), {});
  for (const std::int64_t count : {1, 7, 64}) {
    here.sgd.zero_grad();
    there.sgd.zero_grad();
    const Tensor expected = here.loss(1, count), actual = there.loss(1, count);
    expected.backward();
    actual.backward();
    EXPECT_NEAR(actual.item(), expected.item(), kLossBound * expected.item()) << count;
    const auto ours = there.net->named_parameters(), theirs = here.net->named_parameters();
    for (std::size_t i = 0; i < ours.size(); ++i)
      expect_close(host_values<float>(grad(ours[i].tensor)), host_values<float>(grad(theirs[i].tensor)), kGradientBound,
                   ours[i].name + ", batch " + std::to_string(count));
  }
}

TEST_P(EveryNet, LearnsAsTheCpuDoes) {
  const optim::SGDOptions options{.lr = 0.02F, .momentum = 0.9F, .nesterov = true, .weight_decay = 1e-4F};
  Trainee here(GetParam(), cpu_device(), options), there(GetParam(), gpu(), options);
  float first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const float expected = here.step(step);
    last = there.step(step);
    if (step == 0) first = last;
    ASSERT_NEAR(last, expected, 20 * kLossBound * std::max(1.0F, expected)) << "step " << step;
  }
  EXPECT_LT(last, 0.8F * first);
}

// Doing the same work twice gives the same bits.
TEST_P(EveryNet, RepeatsItself) {
  const auto train = [] {
    Trainee trainee(GetParam(), gpu(), {.lr = 0.05F, .momentum = 0.9F});
    for (int step = 0; step < 5; ++step) trainee.step(step);
    return hash_of(trainee.net->named_parameters());
  };
  EXPECT_EQ(train(), train());
}

TEST_F(GpuAutograd, AddsToGradientsThatAreThere) {
  Trainee trainee("perceptron", gpu(), {});
  trainee.loss(1).backward();
  auto once = host_values<float>(grad(trainee.net->parameters()[0]));
  trainee.loss(1).backward();
  const auto twice = host_values<float>(grad(trainee.net->parameters()[0]));
  for (float& value : once) value += value;
  expect_close(twice, once, kGradientBound, "the sum of two passes");
}

// Elementwise and without contraction: the same bits as on the CPU.
TEST_F(GpuOptimizer, UpdatesWithTheCpusBits) {
  for (const optim::SGDOptions& options :
       {optim::SGDOptions{.lr = 0.1F}, optim::SGDOptions{.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F},
        optim::SGDOptions{.lr = 0.1F, .momentum = 0.9F, .nesterov = true, .weight_decay = 0.01F}}) {
    std::vector<std::vector<float>> results;
    for (Device* const device : {&cpu_device(), &gpu()}) {
      manual_seed(9);
      std::vector<NamedTensor> parameters;
      for (const std::int64_t count : {1, 37, 1025, 100'003}) {
        const Tensor weight = Tensor::empty({count}, DType::kFloat32, *device),
                     slot = Tensor::empty({count}, DType::kFloat32, *device);
        fill_normal(weight, 0, 1);
        fill_normal(slot, 0, 1);
        require_grad(weight);
        bind_grad(weight, slot.buffer());
        parameters.push_back({std::to_string(count), weight});
      }
      optim::SGD sgd(parameters, options);
      for (int step = 0; step < 4; ++step) {
        for (const NamedTensor& each : parameters) mark_grad_written(each.tensor);
        sgd.step();
      }
      for (const NamedTensor& each : parameters) results.push_back(host_values<float>(each.tensor));
    }
    for (std::size_t i = 0; i < results.size() / 2; ++i) EXPECT_EQ(results[results.size() / 2 + i], results[i]) << i;
  }
}

class Numbers : public data::FixedShapeDataset {
 public:
  std::int64_t size() const override { return 100; }
  std::vector<data::TensorSpec> element_spec() const override { return {{{3, 5}}, {{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t epoch, const data::Row& row) const override {
    const auto input = row.span<float>(0);
    for (std::size_t i = 0; i < input.size(); ++i)
      input[i] = static_cast<float>(index * 1000 + epoch * 100) + static_cast<float>(i);
    row.value<std::int64_t>(1) = index;
  }
};

TEST_F(GpuLoader, BringsTheCpusBatches) {
  const Numbers numbers;
  const auto batches_on = [&](Device& device) {
    data::DistributedSampler sampler(numbers.size(), {}, {.shuffle = true, .seed = 4});
    sampler.set_epoch(1);
    std::vector<std::vector<float>> batches;
    std::vector<std::int64_t> targets;
    for (auto& [inputs, labels] : data::DataLoader(numbers, sampler, {.batch_size = 16, .device = &device})) {
      EXPECT_EQ(&inputs.device(), &device);
      batches.push_back(host_values<float>(inputs));
      const auto more = host_values<std::int64_t>(labels);
      targets.insert(targets.end(), more.begin(), more.end());
    }
    return std::pair(batches, targets);
  };
  EXPECT_EQ(batches_on(gpu()), batches_on(cpu_device()));
}

TEST_F(GpuCheckpoint, MovesBetweenDevices) {
  const std::string folder = ::testing::TempDir() + "gpu-checkpoint-" + std::to_string(::getpid());
  for (const bool from_gpu : {true, false}) {
    Device &first = from_gpu ? gpu() : cpu_device(), &second = from_gpu ? cpu_device() : gpu();
    Trainee saved("convolutional", first, {.lr = 0.05F, .momentum = 0.9F}),
        loaded("convolutional", second, {.lr = 0.05F, .momentum = 0.9F});
    for (int step = 0; step < 3; ++step) saved.step(step);
    train::save_checkpoint(folder, {.model = *saved.net, .optimizer = saved.sgd, .step = 3});
    loaded.step(7);  // leaves state that loading must replace
    const auto state = train::load_checkpoint(folder, {.model = *loaded.net, .optimizer = loaded.sgd});
    ASSERT_TRUE(state.has_value());
    EXPECT_EQ(state->step, 3);
    EXPECT_EQ(hash_of(loaded.net->named_parameters()), hash_of(saved.net->named_parameters()));
    EXPECT_EQ(hash_of(loaded.sgd.state()), hash_of(saved.sgd.state()));
    const float expected = saved.step(3);
    EXPECT_NEAR(loaded.step(3), expected, kLossBound * expected) << "it continues where it was saved";
    std::filesystem::remove_all(folder);
  }
}

TEST_F(GpuTraining, CountsCorrectAnswers) {
  Trainee there("perceptron", gpu(), {});
  const Samples samples = make_samples("perceptron", 2, 0, 33);
  const NoGrad no_grad;
  const Tensor logits = (*there.net)(samples.inputs.to(gpu()));
  const std::int64_t counted = nn::count_correct(logits, samples.labels.to(gpu()));
  const std::vector<float> values = host_values<float>(logits);
  EXPECT_EQ(counted, nn::count_correct(Tensor::from<float>(values, logits.shape()), samples.labels));
}

}  // namespace
}  // namespace lockstep::testing
