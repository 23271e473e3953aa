// One physical device as several: valid and invalid configurations, and that the parts compute independently of each
// other.
#include "lockstep/core/logical_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "src/core/device/device_configuration.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kGiB = std::size_t{1} << 30;

GpuSearch two_gpus() {
  GpuSearch found;
  for (int i = 0; i < 2; ++i) found.gpus.push_back({i, "H200", "GPU-" + std::to_string(i), "", 4 * kGiB, 9, 0});
  return found;
}

TEST(LogicalDevices, TheFormsOfTheVariable) {
  const auto parse = [](const std::string& text) { return parse_logical_devices("LOCKSTEP_LOGICAL_DEVICES", text); };
  EXPECT_EQ(parse("cpu:2x").cpus, 2);
  EXPECT_EQ(parse("cuda:1:3x").split_of(1), (GpuSplit{3}));
  EXPECT_EQ(parse("cuda:1:3x").split_of(0), GpuSplit{});
  const DeviceConfiguration both = parse("cpu:4x,cuda:0:1G+512M");
  EXPECT_EQ(both.cpus, 4);
  EXPECT_EQ(both.split_of(0), (GpuSplit{2, {kGiB, kGiB / 2}}));
  for (const char* wrong :
       {"", "cpu", "cpu:2", "cpu:x", "cpu:0x", "cpu:65x", "gpu:2x", "cuda:2x", "cuda:0", "cuda:-1:2x", "cuda:0:+x"})
    EXPECT_THAT(message_of([&] { parse(wrong); }), AllOf(HasSubstr("LOCKSTEP_LOGICAL_DEVICES: '"), HasSubstr("cpu:2x")))
        << wrong;
  EXPECT_THAT(message_of([&] { parse("cuda:0:1G+grow"); }),
              HasSubstr("memory 'grow' of a logical device is invalid: expected an amount"));
}

TEST(LogicalDevices, OptionsThatMakeNoSense) {
  const auto change = [](const DeviceOptions& options) { return message_of([&] { changed_by({}, options); }); };
  EXPECT_THAT(change({.cpu = 0}), HasSubstr("0 logical devices of the CPU are invalid: expected 1 to 64"));
  EXPECT_THAT(change({.cpu = 65}), HasSubstr("65 logical devices of the CPU"));
  EXPECT_THAT(change({.gpu = 0}), HasSubstr(".gpu and .memory must be set together"));
  EXPECT_THAT(change({.memory = {"1G"}}), HasSubstr(".gpu and .memory must be set together"));
  EXPECT_THAT(change({.gpu = -1, .memory = {"1G"}}), HasSubstr("GPU -1 does not exist"));
  EXPECT_THAT(change({.gpu = 0, .memory = {"a lot"}}), HasSubstr("'a lot' is not an amount of memory"));
  EXPECT_THAT(change({.gpu = 0, .memory = std::vector<std::string>(65, "1M")}),
              HasSubstr("65 logical devices of one GPU"));
  EXPECT_THAT(change({.visible = std::vector<int>{0, 0}}),
              HasSubstr(".visible contains GPU 0, which it contains already"));
}

TEST(LogicalDevices, OptionsAddUp) {
  DeviceConfiguration all = changed_by({}, {.cpu = 3});
  all = changed_by(all, {.gpu = 1, .memory = {"1G", "2G"}});
  all = changed_by(all, {.visible = std::vector<int>{1}, .grow = false});
  EXPECT_EQ(all.cpus, 3);
  EXPECT_EQ(all.split_of(1), (GpuSplit{2, {kGiB, 2 * kGiB}}));
  EXPECT_TRUE(all.sees(1));
  EXPECT_FALSE(all.sees(0));
  EXPECT_EQ(all.grow, false);
  EXPECT_EQ(gpu_device_name(1, all.split_of(1), 1), "cuda:1/1");
  EXPECT_EQ(gpu_device_name(0, all.split_of(0), 0), "cuda:0");
  check_gpus_exist(all, two_gpus());
}

TEST(LogicalDevices, GpusThatAreNotThereAndLimitsThatDoNotFit) {
  const auto check = [](const DeviceOptions& options) {
    return message_of([&] { check_gpus_exist(changed_by({}, options), two_gpus()); });
  };
  EXPECT_THAT(check({.gpu = 2, .memory = {"1G"}}), HasSubstr("there is no GPU 2: this process has GPUs 0 to 1"));
  EXPECT_THAT(check({.visible = std::vector<int>{7}}), HasSubstr("there is no GPU 7"));
  EXPECT_THAT(check({.gpu = 0, .memory = {"3G", "2G"}}),
              HasSubstr("the limits of GPU 0's 2 parts do not fit into its 4294967296 bytes"));
  EXPECT_THAT(check({.gpu = 0, .memory = {"16777215T", "2G"}}), HasSubstr("is not an amount of memory"));
  EXPECT_THAT(check({.gpu = 0, .memory = {"18446744073709551615", "2G"}}), HasSubstr("do not fit"));
  EXPECT_THAT(message_of([] {
                check_gpus_exist(changed_by({}, {.gpu = 1, .memory = {"1G"}, .visible = std::vector<int>{0}}),
                                 two_gpus());
              }),
              HasSubstr("GPU 1 is to be split, but is not among the visible ones"));
  EXPECT_THAT(message_of([] {
                check_gpus_exist(changed_by({}, {.gpu = 0, .memory = {"1G"}}), {{}, "no driver"});
              }),
              HasSubstr("this process has none: no driver"));
}

// A process configures its devices once, so each case runs in a separate process, which prints its result and exits.
class FreshProcess : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

template <typename Function> [[noreturn]] void print_and_leave(Function&& function) {
  std::string text;
  try {
    text = function();
  } catch (const Error& error) {
    text = std::string("error: ") + error.what();
  }
  std::fputs(text.c_str(), stderr);
  std::_Exit(0);
}

TEST_F(FreshProcess, TheCpuAsTwoDevices) {
  EXPECT_EXIT(print_and_leave([] {
                Device::configure({.cpu = 2});
                const std::string told = describe_devices();
                const auto devices = logical_devices(DeviceKind::kCpu);
                const Buffer first = devices.at(0)->allocate(100), second = devices.at(1)->allocate(200);
                return fmt::format("{}; {} {} {}; {} {}; {} {} {}; {}", told, devices.size(), devices[0]->name(),
                                   devices[1]->name(), devices[0] == &cpu_device(), second.device() == devices[1],
                                   devices[0]->allocator_stats().system_allocations,
                                   devices[1]->allocator_stats().system_allocations, device_named("cpu:1").index(),
                                   physical_devices().front().name);
              }),
              ::testing::ExitedWithCode(0), "1 physical CPU, 2 logical.*; 2 cpu:0 cpu:1; true true; 1 1 1; cpu");
}

TEST_F(FreshProcess, ByTheVariable) {
  EXPECT_EXIT(print_and_leave([] {
                setenv("LOCKSTEP_LOGICAL_DEVICES", "cpu:3x", 1);
                return std::to_string(logical_devices(DeviceKind::kCpu).size());
              }),
              ::testing::ExitedWithCode(0), "^3$");
}

TEST_F(FreshProcess, AChangeAfterTheFirstUseIsAnError) {
  EXPECT_EXIT(print_and_leave([]() -> std::string {
                cpu_device();
                Device::configure({.cpu = 1});  // no change
                Device::configure({.cpu = 2});
                return "changed";
              }),
              ::testing::ExitedWithCode(0),
              "error: Device::configure: the CPU is in use already, as 1 logical device: call it before");
}

TEST_F(FreshProcess, AnUnknownDevice) {
  EXPECT_EXIT(print_and_leave([] {
                Device::configure({.cpu = 2});
                return device_named("cpu:2").name();
              }),
              ::testing::ExitedWithCode(0), "error: there is no device 'cpu:2': cpu:0, cpu:1");
}

}  // namespace
}  // namespace lockstep
