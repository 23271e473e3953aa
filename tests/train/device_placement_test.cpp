// The log of where parameters are and where operators run.
#include "lockstep/train/device_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/operator_log.h"
#include "tests/support/log_lines.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using testing::LogLines;
using ::testing::Not;

int count_of(const std::string& text, const std::string& line) {
  int count = 0;
  for (std::size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++count;
  return count;
}

class DevicePlacement : public ::testing::Test {
 protected:
  ~DevicePlacement() override {
    for (Device* device : logical_devices(DeviceKind::kCpu)) log_operators(*device, false);
  }
};

TEST_F(DevicePlacement, ParametersAndTheFirstCallOfEachOperator) {
  const auto cpus = on_cpus(0, 2).devices;
  nn::Sequential net;
  net.append_named<nn::Conv2d>("conv1", 3, 64, Size2{5, 5}).to(*cpus[1]);
  const LogLines log;
  log_device_placement(net);
  EXPECT_THAT(log.text(), HasSubstr("conv1.weight: cpu:1 (64x5x5x3 float32)\n"));
  EXPECT_THAT(log.text(), HasSubstr("conv1.bias: cpu:1 (64 float32)\n"));
  EXPECT_THAT(log.text(), Not(HasSubstr("operator"))) << "no operator has run";
  for (int i = 0; i < 2; ++i) sum(net(Tensor::zeros({1, 6, 6, 3}, DType::kFloat32, *cpus[1]))).backward();
  EXPECT_EQ(count_of(log.text(), "operator conv2d: cpu:1\n"), 1) << log.text();
  EXPECT_EQ(count_of(log.text(), "operator conv2d_backward_weights: cpu:1\n"), 1);
  EXPECT_THAT(log.text(), Not(HasSubstr("cpu:0"))) << "that device is not logged";
}

TEST_F(DevicePlacement, DevicesOfAStrategyAreDistinguished) {
  const auto strategy = make_strategy("towers", training_of_net(), on_cpus(1, 2));
  const LogLines log;
  log_device_placement(*strategy);
  EXPECT_THAT(log.text(), HasSubstr("norm.running_mean: cpu:0 (4 float32)\n")) << "the device of the variables";
  for (int step = 0; step < 2; ++step) strategy->step(batch_of(0).first, batch_of(0).second);
  for (const char* device : {"cpu:1", "cpu:2"})
    for (const char* name : {"conv2d", "linear", "softmax_cross_entropy"})
      EXPECT_EQ(count_of(log.text(), std::string("operator ") + name + ": " + device + "\n"), 1)
          << name << " on " << device;
  EXPECT_EQ(count_of(log.text(), "operator sgd_step: cpu:0\n"), 1) << log.text();
  EXPECT_THAT(log.text(), Not(HasSubstr("operator conv2d: cpu:0"))) << "this device only has the variables";
}

TEST_F(DevicePlacement, ResultsAreTheSameAndOffIsOff) {
  Device& device = cpu_device();
  const KernelTable before = device.kernels();
  const Tensor x = Tensor::full({4}, -1.5F);
  log_operators(device);
  log_operators(device);
  {
    const LogLines log;
    EXPECT_EQ(relu(x).span<float>()[3], 0);
    EXPECT_EQ(count_of(log.text(), "operator relu: cpu:0\n"), 1);
  }
  log_operators(device, false);
  EXPECT_EQ(device.kernels().relu, before.relu);
  EXPECT_EQ(device.kernels().conv2d, before.conv2d);
  const LogLines log;
  relu(x), tanh(x);
  EXPECT_EQ(log.text(), "");
  log_operators(device);
  relu(x);
  EXPECT_EQ(count_of(log.text(), "operator relu: cpu:0\n"), 1) << "after turning it on again, it is logged again";
}

}  // namespace
}  // namespace lockstep::train
