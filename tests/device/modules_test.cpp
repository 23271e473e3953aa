// Modules between devices: state dicts and files, printing from a GPU, and initialisation that does not depend on the
// device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/conv3d.h"
#include "lockstep/nn/conv_transpose.h"
#include "lockstep/nn/image_padding.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/instance_norm.h"
#include "lockstep/nn/recurrent.h"
#include "lockstep/nn/transformer.h"
#include "lockstep/nn/upsample.h"
#include "lockstep/train/safetensors.h"
#include "tests/support/device_training.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(DeviceModules, StateDictsAndFilesCrossDevices) {
  RecordingDevice device;
  manual_seed(1);
  SmallNet on_cpu;
  manual_seed(2);
  SmallNet on_gpu;
  on_gpu.to(device);
  EXPECT_NE(weights_of(on_gpu), weights_of(on_cpu));
  on_gpu.load_state_dict(on_cpu.state_dict());
  EXPECT_EQ(weights_of(on_gpu), weights_of(on_cpu));
  EXPECT_EQ(&on_gpu.parameters()[0].device(), &device);

  const std::string path = temporary("device.safetensors");
  train::save_safetensors(path, on_gpu.state_dict());
  manual_seed(3);
  SmallNet again;
  again.load_state_dict(train::load_safetensors(path).tensors);
  EXPECT_EQ(weights_of(again), weights_of(on_cpu));
  std::filesystem::remove(path);
}

TEST(DeviceModules, SummariesRunOnTheModulesDevice) {
  RecordingDevice device;
  SmallNet net;
  const std::string on_cpu = nn::summary(net, kImages);
  net.to(device);
  device.clear_log();
  EXPECT_EQ(nn::summary(net, kImages), on_cpu);
  EXPECT_FALSE(device.log().empty());
}

TEST(DeviceModules, ATensorPrintsItsValuesAndItsDevice) {
  RecordingDevice device;
  const Tensor value = Tensor::full({2}, 1.5F, device);
  std::ostringstream text;
  text << value;
  EXPECT_EQ(text.str(), "tensor([1.5000, 1.5000], shape=(2), dtype=float32, device=" + device.name() + ")");
  device.begin_capture(device.default_stream());
  EXPECT_THAT(message_of([&] { text << value; }), HasSubstr("do not exist yet"));
  device.end_capture(device.default_stream());
}

TEST(DeviceModules, InitialisationGivesTheSameOnEveryDevice) {
  RecordingDevice device;
  const auto filled = [](Device& where) {
    manual_seed(5);
    const Tensor weight = Tensor::empty({8, 3, 3, 4}, DType::kFloat32, where);
    nn::init::kaiming_normal(weight);
    return values_of(weight);
  };
  EXPECT_EQ(filled(device), filled(plain_cpu()));
}

// The outputs of a layer on the device, and the gradients of the sum of their squares.
std::vector<std::vector<float>> computed_on(Device& device, nn::Module& module, const Tensors& inputs) {
  module.to(device);
  Tensors moved;
  for (const Tensor& input : inputs) {
    moved.push_back(input.to(device).clone());
    if (input.dtype() == DType::kFloat32) require_grad(moved.back());
  }
  for (const NamedTensor& each : module.named_parameters()) clear_grad(each.tensor);
  const Tensors outputs = module(moved);
  std::vector<std::vector<float>> all;
  Tensor loss;
  for (const Tensor& output : outputs) {
    all.push_back(values_of(output));
    loss = loss.defined() ? loss + l2_loss(output) : l2_loss(output);
  }
  loss.backward();
  for (const Tensor& input : moved)
    if (input.dtype() == DType::kFloat32) all.push_back(values_of(grad(input)));
  for (const NamedTensor& each : module.named_parameters()) all.push_back(values_of(grad(each.tensor)));
  return all;
}

TEST(DeviceModules, LayersComputeThereAsOnTheCpu) {
  manual_seed(6);
  const Tensor images = Tensor::empty({2, 5, 6, 4}), sequences = Tensor::empty({3, 4, 4}),
               volumes = Tensor::empty({2, 3, 5, 6, 4});
  for (const Tensor& each : {images, sequences, volumes}) fill_uniform(each, -1, 1);
  const std::vector<std::int64_t> ends = {4, 0, 2};
  const Tensor lengths = Tensor::from(std::span<const std::int64_t>(ends), {3});
  struct Case {
    std::unique_ptr<nn::Module> layer;
    Tensors inputs;
  };
  std::vector<Case> cases;
  const nn::TransformerOptions decoder{.feedforward = 8, .dropout = 0};
  const UpsampleOptions bilinear{.scale = 1.5, .mode = UpsampleMode::kBilinear};
  cases.push_back({std::make_unique<nn::LSTM>(4, 5, nn::RecurrentLayerOptions{.num_layers = 2, .bidirectional = true}),
                   {sequences, lengths}});
  cases.push_back({std::make_unique<nn::GRU>(4, 5), {sequences, lengths}});
  cases.push_back({std::make_unique<nn::TransformerDecoderLayer>(4, 2, decoder), {sequences, sequences}});
  cases.push_back(
      {std::make_unique<nn::ConvTranspose2d>(4, 3, 3, nn::ConvTranspose2dLayerOptions{.stride = 2}), {images}});
  cases.push_back(
      {std::make_unique<nn::Conv3d>(4, 3, 2, nn::Conv3dLayerOptions{.stride = 2, .padding = 1}), {volumes}});
  cases.push_back({std::make_unique<nn::Upsample>(bilinear), {images}});
  cases.push_back({std::make_unique<nn::AdaptiveAvgPool2d>(Size2{3, 4}), {images}});
  cases.push_back({std::make_unique<nn::AdaptiveMaxPool2d>(Size2{3, 4}), {images}});
  cases.push_back({std::make_unique<nn::ReflectionPad2d>(Padding{1, 2}), {images}});
  cases.push_back({std::make_unique<nn::ReplicationPad2d>(Padding{1, 2}), {images}});
  cases.push_back({std::make_unique<nn::InstanceNorm>(4), {images}});
  for (const Case& each : cases) {
    SCOPED_TRACE(each.layer->kind());
    const auto expected = computed_on(cpu_device(), *each.layer, each.inputs);
    RecordingDevice device;
    const auto found = computed_on(device, *each.layer, each.inputs);
    each.layer->to(cpu_device());
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].size(), expected[i].size());
      for (std::size_t k = 0; k < found[i].size(); ++k)
        EXPECT_NEAR(found[i][k], expected[i][k], 1e-4F) << i << ", " << k;
    }
  }
}

// Two identical parts of a batch: the statistics equal those of one part, and so do the gradients.
class TwoOfAKind : public StatisticsExchange {
 public:
  std::vector<double> gather(std::span<const double> own) override {
    std::vector<double> both(own.begin(), own.end());
    both.insert(both.end(), own.begin(), own.end());
    return both;
  }
  void add_up(std::span<double> values) override {
    for (double& value : values) value *= 2;
  }
};

TEST(DeviceModules, BatchNormOverSeveralPartsPassesThroughTheHost) {
  RecordingDevice device;
  manual_seed(4);
  const Tensor x = Tensor::empty({5, 3, 4}), y_grad = Tensor::empty({5, 3, 4});
  fill_normal(x, 2, 3);
  fill_normal(y_grad, 0, 1);
  const auto pass = [&](nn::BatchNorm& norm, Device& where) {
    norm.to(where);
    const Tensor here = x.to(where).clone();
    require_grad(here);
    const Tensor y = norm(here);
    y.backward({.gradient = y_grad.to(where)});
    return std::vector{values_of(y), values_of(grad(here)), values_of(grad(norm.weight)), values_of(norm.running_mean)};
  };
  nn::BatchNorm alone(4), parts(4);
  parts.exchange_statistics(std::make_shared<TwoOfAKind>());
  const auto expected = pass(alone, plain_cpu()), got = pass(parts, device);
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::size_t k = 0; k < expected[i].size(); ++k)
      ASSERT_NEAR(got[i][k], expected[i][k], 1e-5F) << i << ", " << k;
  // As a recorded graph it would never exchange statistics again.
  const Tensor there = x.to(device);
  device.begin_capture(device.default_stream());
  EXPECT_THAT(message_of([&] { parts(there); }), HasSubstr("the step is being recorded"));
  device.end_capture(device.default_stream());
}

}  // namespace
}  // namespace lockstep::testing
