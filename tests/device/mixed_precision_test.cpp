// Mixed precision on a GPU: the CPU's bits if the kernels are the CPU's, and a step that the host queues without
// waiting for any of it, including the decision to skip it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "tests/support/device_training.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;

class HalfTraining {
 public:
  // Sets the seed before net_ draws its weights.
  explicit HalfTraining(Device& device) : device_((manual_seed(3), device)) { net_.to(device); }
  void step(int number, bool bad = false) {
    const AutoCast autocast(DType::kFloat16);
    const data::Batch batch = small_batch(number);
    if (bad) batch.inputs().span<float>()[5] = std::numeric_limits<float>::infinity();
    const Tensor loss = nn::cross_entropy(net_(batch.inputs().to(device_)), batch.targets().to(device_));
    sgd_.zero_grad();
    scaler_.scale(loss).backward();
    sgd_.step();
  }
  std::vector<std::vector<float>> weights() const { return weights_of(net_); }
  const optim::LossScaler& scaler() const { return scaler_; }

 private:
  Device& device_;
  SmallNet net_;
  optim::LossScaler scaler_{{.initial = 1024, .growth_interval = 3}};
  optim::SGD sgd_{net_.named_parameters(), {.lr = 0.05F, .momentum = 0.9F, .loss_scaler = &scaler_}};
};

TEST(DeviceMixedPrecision, GivesTheCpusBits) {
  RecordingDevice device;
  HalfTraining on_gpu(device), on_cpu(plain_cpu());
  for (int step = 0; step < 6; ++step) on_gpu.step(step, step == 4), on_cpu.step(step, step == 4);
  EXPECT_EQ(on_gpu.weights(), on_cpu.weights());
  EXPECT_EQ(on_gpu.scaler().value(), 1024) << "doubled by three good steps, halved by the bad one";
  EXPECT_EQ(on_gpu.scaler().skipped_steps(), 1);
  const std::vector<std::string> log = device.log();
  for (const char* kernel : {"mixed conv2d", "mixed conv2d_backward_weights", "mixed max_pool2d", "mixed lrn",
                             "mixed linear", "find_bad_gradients", "sgd_step", "update_loss_scale"})
    EXPECT_THAT(log, Contains(std::string("stream 0: ") + kernel));
  EXPECT_THAT(log, ::testing::Not(Contains("stream 0: conv2d"))) << "not in 16 bits";
}

TEST(DeviceMixedPrecision, AStepIsQueuedWithoutWaiting) {
  RecordingDevice device;
  HalfTraining training(device);
  training.step(0);
  const auto before = training.weights();
  device.hold_default_stream();  // anything that waited for the device would wait forever
  training.step(1, /*bad=*/true);
  training.step(2);
  device.release_default_stream();
  EXPECT_EQ(training.scaler().skipped_steps(), 1);
  EXPECT_NE(training.weights(), before);
}

}  // namespace
}  // namespace lockstep::testing
