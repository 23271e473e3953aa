// Modules between devices: state dicts and files across them, printing from a GPU, initialisation that does not depend on the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

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
  save_safetensors(path, on_gpu.state_dict());
  manual_seed(3);
  SmallNet again;
  again.load_state_dict(load_safetensors(path).tensors);
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

}  // namespace
}  // namespace lockstep::testing
