// Checkpoints between devices: the CPU loads what a GPU saved, and the reverse; the files are identical.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/train/checkpoint.h"
#include "tests/support/device_training.h"
#include "tests/support/recording_device.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// A training that can be saved, loaded and continued on any device.
struct SavedRun {
  explicit SavedRun(Device& device, std::uint64_t seed = 3) : device(device) {
    manual_seed(seed);
    net.to(device);
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      const data::Batch batch = small_batch(step);
      train_step([&](const Tensor& x) { return net(x); }, sgd, {batch.inputs().to(device), batch.targets().to(device)});
    }
  }
  std::string save(const std::string& folder, std::int64_t step) {
    return train::save_checkpoint(folder, {.model = net, .optimizer = sgd, .step = step, .keep = 9});
  }
  void load(const std::string& folder) {
    ASSERT_TRUE(train::load_checkpoint(folder, {.model = net, .optimizer = sgd}));
  }

  Device& device;
  SmallNet net;
  optim::SGD sgd{net.named_parameters(), {.lr = 0.05F, .momentum = 0.9F}};
};

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  auto manifest = nlohmann::json::parse(files["manifest.json"]);
  EXPECT_EQ(manifest.erase("sequence"), 1u) << "the number of the save";
  EXPECT_EQ(manifest.erase("saved_at"), 1u);
  files["manifest.json"] = manifest.dump();
  return files;
}

TEST(DeviceCheckpoint, MovesFromAGpuToTheCpuAndBack) {
  const std::string folder = temporary("device-checkpoint");
  RecordingDevice device;
  SavedRun on_gpu(device), on_cpu(plain_cpu(), 77), again(device, 78);
  on_gpu.train(0, 3);
  const std::string first = on_gpu.save(folder, 3);

  on_cpu.load(folder);
  EXPECT_EQ(weights_of(on_cpu.net), weights_of(on_gpu.net));
  const std::string second = on_cpu.save(folder, 3);
  again.load(folder);
  const std::string third = again.save(folder, 3);
  EXPECT_EQ(files_of(first), files_of(second));
  EXPECT_EQ(files_of(first), files_of(third));

  for (SavedRun* run : {&on_gpu, &on_cpu, &again}) run->train(3, 6);
  EXPECT_EQ(weights_of(on_cpu.net), weights_of(on_gpu.net)) << "momenta travel as well";
  EXPECT_EQ(weights_of(again.net), weights_of(on_gpu.net));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
