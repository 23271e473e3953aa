// Names of devices in PyTorch's and TensorFlow's spelling, and the default device.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "lockstep/lockstep.h"
#include "src/core/device/device_name.h"
#include "tests/support/message_of.h"
#include "tests/support/strategies_of_one_process.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DeviceName, IsReadInEverySpelling) {
  constexpr auto kCpu = DeviceKind::kCpu, kCuda = DeviceKind::kCuda;
  EXPECT_EQ(parse_device_name("cpu"), (DeviceName{kCpu}));
  for (const char* text : {"cpu:1", "CPU:1", "/cpu:1", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"})
    EXPECT_EQ(parse_device_name(text), (DeviceName{kCpu, 1})) << text;
  EXPECT_EQ(parse_device_name("cuda"), (DeviceName{kCuda, {}, {}, true}));
  EXPECT_EQ(parse_device_name("cuda:3"), (DeviceName{kCuda, 3, {}, true}));
  EXPECT_EQ(parse_device_name("cuda:0/1"), (DeviceName{kCuda, 0, 1, true}));
  for (const char* text : {"gpu:0", "/gpu:0", "/GPU:0", "/device:GPU:0", "GPU:0"})
    EXPECT_EQ(parse_device_name(text), (DeviceName{kCuda, 0})) << text;
  for (const char* text : {"", "cp", "cpu:", "cpu:x", "cpu:-1", "cpu:0/1", "gpu:0/1", "cuda:0/", "/job:ps/task:0/cpu:0",
                           "tpu:0", "cpu:99999999999", "cuda:0,1"})
    EXPECT_EQ(parse_device_name(text), std::nullopt) << text;
}

TEST(DeviceName, TheCpuIsTheFirstDeviceUndivided) {
  for (const char* text : {"cpu", "cpu:0", "CPU:0", "/cpu:0", "/device:CPU:0"})
    EXPECT_EQ(&device_named(text), &cpu_device()) << text;
  EXPECT_THAT(message_of([] { device_named("cpu:1"); }), HasSubstr("there is no device 'cpu:1': cpu"));
  EXPECT_THAT(message_of([] { device_named("tpu:0"); }), HasSubstr("TensorFlow's /gpu:0"));
}

TEST(DeviceName, SoftPlacementIsRefused) {
  EXPECT_THAT(message_of([] { Device::configure({.soft_placement = true}); }),
              AllOf(HasSubstr("allow_soft_placement"), HasSubstr(".to(device)")));
  if (logical_devices(DeviceKind::kCuda).empty())
    for (const char* text : {"cuda", "cuda:0", "/gpu:0"}) {
      EXPECT_THAT(message_of([&] { device_named(text); }),
                  AllOf(HasSubstr("no GPU: "), HasSubstr("soft placement"), HasSubstr("local_device()")))
          << text;
      EXPECT_THAT(message_of([&] { set_default_device(text); }), HasSubstr("soft placement"));
    }
  EXPECT_EQ(&default_device(), &cpu_device());
}

// The CPU can be divided only before its first use, so a new process runs the test again up to here.
class DividedCpu : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

template <typename Function> [[noreturn]] void print_result_and_leave(Function&& function) {
  Device::configure({.cpu = 2});
  std::fputs(function().c_str(), stderr);
  std::_Exit(0);
}

TEST_F(DividedCpu, CpuIsStillTheFirstDevice) {
  EXPECT_EXIT(print_result_and_leave([] {
                return fmt::format("{} {} {} {} {}", device_named("cpu").name(), device_named("cpu:0").name(),
                                   device_named("/CPU:0").name(), device_named("/device:CPU:1").name(),
                                   message_of([] { device_named("cpu:2"); }));
              }),
              ::testing::ExitedWithCode(0), "^cpu:0 cpu:0 cpu:0 cpu:1 there is no device 'cpu:2': cpu:0, cpu:1");
}

TEST_F(DividedCpu, AScopeIsTheDeviceOfNewTensors) {
  EXPECT_EXIT(print_result_and_leave([] {
                std::string text;
                const auto note = [&](const Tensor& tensor) { text += tensor.device().name() + " "; };
                {
                  const DeviceScope scope("/cpu:1");
                  note(Tensor::empty({2}));
                  note(Tensor::zeros({2}, DType::kInt64));
                  note(Tensor::full({2}, 3));
                  note(Tensor::from<float>(std::vector<float>{1, 2}, {2}));
                  note(Tensor::zeros({2}, DType::kFloat32, cpu_device()));
                  {
                    const DeviceScope inner(cpu_device());
                    note(Tensor::empty({2}));
                  }
                  note(Tensor::empty({2}));
                  std::thread([&] { note(Tensor::empty({2})); }).join();  // not inherited
                }
                note(Tensor::empty({2}));
                return text;
              }),
              ::testing::ExitedWithCode(0), "^cpu:1 cpu:1 cpu:1 cpu:1 cpu:0 cpu:0 cpu:1 cpu:0 cpu:0 $");
}

TEST_F(DividedCpu, TheDefaultDeviceIsTheProcesss) {
  EXPECT_EXIT(print_result_and_leave([] {
                set_default_device("cpu:1");
                std::string text;
                std::thread([&] { text = Tensor::empty({2}).device().name(); }).join();
                const DeviceScope scope("cpu:0");
                return text + " " + Tensor::empty({2}).device().name();
              }),
              ::testing::ExitedWithCode(0), "^cpu:1 cpu:0$");
}

TEST_F(DividedCpu, ModulesFollowTheScopeWithTheSameWeights) {
  EXPECT_EXIT(print_result_and_leave([] {
                const auto make = [](nn::Sequential& net) {
                  manual_seed(5);
                  net.append<nn::Embedding>(6, 4, 0);
                  net.append<nn::Linear>(4, 3);
                  net.append<nn::LayerNorm>(Shape{3});
                };
                nn::Sequential here, there;
                make(here);
                {
                  const DeviceScope scope("cpu:1");
                  make(there);
                }
                int equal = 0, moved = 0;
                const auto own = here.state_dict(), other = there.state_dict();
                for (std::size_t i = 0; i < own.size(); ++i) {
                  const auto a = own[i].tensor.span<float>(), b = other[i].tensor.span<float>();
                  equal += std::equal(a.begin(), a.end(), b.begin(), b.end()) ? 1 : 0;
                  moved += other[i].tensor.device().name() == "cpu:1" ? 1 : 0;
                }
                return fmt::format("{} {} {}", own.size(), equal, moved);
              }),
              ::testing::ExitedWithCode(0), "^5 5 5$");
}

// A training with everything around it, as a function of the default device; returns the weights' digits.
std::string trained(const std::string& strategy, const std::string& folder) {
  using namespace data;
  class Points : public Dataset {
   public:
    std::int64_t size() const override { return 24; }
    Sample get(std::int64_t index, std::int64_t) const override {
      const Tensor point = Tensor::empty({4}, DType::kFloat32, cpu_device());
      for (std::size_t i = 0; i < 4; ++i) point.span<float>()[i] = static_cast<float>((index * 7 + 3 * i) % 11) / 11;
      return {point, data::scalar(index % 3)};
    }
  };
  manual_seed(3);
  train::Trainer trainer([] {
    auto net = std::make_unique<nn::Sequential>();
    net->append<nn::Linear>(4, 8);
    net->append<nn::BatchNorm>(8);
    net->append<nn::Dropout>(0.25F);
    net->append<nn::Linear>(8, 3);
    return net;
  });
  trainer.compile({.optimizer = [](auto weights) { return std::make_unique<optim::Adam>(std::move(weights)); },
                   .loss = [](const Tensor& y, const Tensor& targets) { return nn::cross_entropy(y, targets); },
                   .metrics = {{"accuracy", train::Accuracy()}},
                   .strategy = strategy});
  const auto set = Pipeline(Points()).shuffle().batch(8);
  trainer.fit(set, {.epochs = 2, .validation = set, .progress = false});
  trainer.save(folder);
  trainer.load(folder);
  trainer.fit(set, {.epochs = 3, .initial_epoch = 2, .progress = false});
  std::string text = fmt::format("{} {}", trainer.evaluate(set).front().second, trainer.predict(set).device().name());
  for (const NamedTensor& entry : trainer.model().state_dict())
    for (const float value : entry.tensor.to(cpu_device()).span<float>()) text += fmt::format(" {:a}", value);
  return text;
}

TEST_F(DividedCpu, ATrainingIsTheSameUnderAnyDefaultDevice) {
  const std::string folder = ::testing::TempDir() + "default_device-" + std::to_string(::getpid());
  std::vector<std::string> strategies = testing::strategies_of_one_process();
  strategies.emplace_back("ddp");
  for (const std::string& strategy : strategies)
    EXPECT_EXIT(print_result_and_leave([&]() -> std::string {
                  const std::string plain = trained(strategy, folder + "-a");
                  set_default_device("cpu:1");
                  const std::string other = trained(strategy, folder + "-b");
                  std::filesystem::remove_all(folder + "-a");
                  std::filesystem::remove_all(folder + "-b");
                  return plain == other ? "equal" : plain + "\n" + other;
                }),
                ::testing::ExitedWithCode(0), "equal$")
        << strategy;
}

}  // namespace
}  // namespace lockstep
