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
#include "lockstep/nn/init.h"
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
