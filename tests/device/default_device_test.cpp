// A GPU, simulated, as the default device: modules are made there with the same weights, and code that means the CPU
// still takes it (a span of a GPU's tensor throws).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/lockstep.h"
#include "tests/support/device_training.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

namespace ls = lockstep;

// The process's default device while it lives; the device must outlive no tensor of it.
class DefaultDevice {
 public:
  explicit DefaultDevice(Device& device) { set_default_device(device); }
  ~DefaultDevice() { set_default_device(cpu_device()); }
  DefaultDevice(const DefaultDevice&) = delete;
  DefaultDevice& operator=(const DefaultDevice&) = delete;
};

std::vector<float> floats_in(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu_device());
  return {host.span<float>().begin(), host.span<float>().end()};
}

struct Everything : nn::Module {
  nn::Embedding words{5, 4, /*padding=*/2};
  nn::MultiheadAttention attention{4, 2};
  nn::LayerNorm layer_norm{Shape{4}};
  nn::RMSNorm rms_norm{Shape{4}};
  nn::GroupNorm group_norm{2, 4};
  nn::BatchNorm batch_norm{4};
  nn::Conv1d conv1d{4, 4, 1};
  nn::Conv2d conv2d{4, 4, Size2{1, 1}};
  nn::Linear linear{4, 3};
  nn::LSTM lstm{4, 3};
  nn::ConvTranspose2d conv_transpose{4, 4, Size2{1, 1}};
  nn::Conv3d conv3d{4, 4, 1};
  nn::InstanceNorm instance_norm{4, {.affine = true}};
  nn::TransformerDecoderLayer decoder{4, 2, {.feedforward = 8}};
  Everything() {
    add("words", words);
    add("attention", attention);
    add("layer_norm", layer_norm);
    add("rms_norm", rms_norm);
    add("group_norm", group_norm);
    add("batch_norm", batch_norm);
    add("conv1d", conv1d);
    add("conv2d", conv2d);
    add("linear", linear);
    add("lstm", lstm);
    add("conv_transpose", conv_transpose);
    add("conv3d", conv3d);
    add("instance_norm", instance_norm);
    add("decoder", decoder);
  }
  Tensor forward(const Tensor& x) override { return x; }
  std::string kind() const override { return "Everything"; }
};

TEST(DefaultDevice, ModulesAreMadeThereWithTheSameWeights) {
  RecordingDevice device;
  manual_seed(4);
  const Everything here;
  manual_seed(4);
  const DeviceScope scope(device);
  const Everything there;
  const auto own = here.state_dict(), other = there.state_dict();
  ASSERT_EQ(own.size(), other.size());
  EXPECT_GE(own.size(), 20U);
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(&other[i].tensor.device(), &device) << other[i].name;
    EXPECT_EQ(floats_in(own[i].tensor), floats_in(other[i].tensor)) << other[i].name;
  }
}

// docs/strategies.md
using Net = SmallNet;
void make_on(ls::Device& device) {
  const ls::DeviceScope scope(device);  // or by its name: scope("/gpu:0")
  Net net;                              // its parameters and buffers are on that device
  const ls::Tensor noise = ls::Tensor::zeros({2, 3});
  EXPECT_EQ(&noise.device(), &device);
  for (const Tensor& parameter : net.parameters()) EXPECT_EQ(&parameter.device(), &device);
}

TEST(DefaultDevice, DoesWhatItsPageSays) {
  RecordingDevice device;
  make_on(device);
  EXPECT_EQ(&Tensor::zeros({2}).device(), &cpu_device());
}

class ThirtyImages : public data::FixedShapeDataset {
 public:
  std::int64_t size() const override { return 30; }
  std::vector<data::TensorSpec> element_spec() const override { return {{{8, 8, 3}}, {{}, DType::kInt64}}; }
  void read(std::int64_t index, std::int64_t, const data::Row& row) const override {
    Philox random(1, static_cast<std::uint64_t>(index));
    for (float& value : row.span<float>(0)) value = random.uniform(-1.F, 1.F);
    row.span<std::int64_t>(1)[0] = index % 5;
  }
};

// On the CPU in every case; returns the weights, losses and outputs.
std::vector<float> trained_on_the_cpu(const std::string& folder) {
  manual_seed(6);
  train::Trainer trainer([] { return std::make_unique<SmallNet>(); });
  optim::LossScaler scaler({.initial = 8});
  trainer.compile(
      {.optimizer =
           [&](auto weights) {
             return std::make_unique<optim::Adam>(std::move(weights), optim::AdamOptions{.loss_scaler = &scaler});
           },
       .loss = [&](const Tensor& y, const Tensor& targets) { return scaler.scale(nn::cross_entropy(y, targets)); },
       .metrics = {{"accuracy", train::Accuracy()}}});
  const auto set = data::Pipeline(ThirtyImages()).shuffle().batch(10).prefetch(2, 2);
  trainer.fit(set, {.epochs = 2, .validation = set, .progress = false});
  trainer.save(folder + "/checkpoint");
  trainer.load(folder + "/checkpoint");
  train::save_safetensors(folder + "/net.safetensors", trainer.model().state_dict());
  trainer.model().load_state_dict(train::load_safetensors(folder + "/net.safetensors").tensors);
  train::SummaryWriter(folder + "/events")
      .add_images("images", Tensor::zeros({2, 8, 8, 3}, DType::kFloat32, cpu_device()), 0);
  trainer.fit(set, {.epochs = 3, .initial_epoch = 2, .progress = false});
  std::vector<float> all = floats_in(trainer.predict(set));
  for (const auto& [name, value] : trainer.evaluate(set)) all.push_back(static_cast<float>(value));
  for (const NamedTensor& entry : trainer.model().state_dict()) {
    const std::vector<float> values = floats_in(entry.tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(DefaultDevice, CodeThatMeansTheCpuTakesIt) {
  const std::string folder = ::testing::TempDir() + "default_device-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder + "/a");
  std::filesystem::create_directories(folder + "/b");
  const std::vector<float> plain = trained_on_the_cpu(folder + "/a");
  RecordingDevice device;
  const DefaultDevice scope(device);
  EXPECT_EQ(trained_on_the_cpu(folder + "/b"), plain);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
