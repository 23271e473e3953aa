// mirrored: its all-reduces run while backward does, its replicas are equal at any moment, and a device that fails ends
// the step for all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/comm/flight/flight_log.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::int64_t kWide = 640;  // a weight of 1.6 MB, more than the first bucket takes

// Calls `in_backward` when the gradient of the first layer's output is there: the gradients of the layers after it are
// final by then.
struct Deep : nn::Module {
  nn::Linear first{72, kWide}, second{kWide, kWide, {.activation = Activation::kReLU}}, third{kWide, 3};
  std::function<void(const Device&)> in_backward;
  std::vector<HookHandle> hooks;
  explicit Deep(std::function<void(const Device&)> hook = {}) : in_backward(std::move(hook)) {
    add("first", first);
    add("second", second);
    add("third", third);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor hidden = first(flatten(x));
    hooks.clear();
    if (in_backward && requires_grad(hidden))
      hooks.push_back(register_result_grad_hook(hidden, [this](const Tensor&) { in_backward(first.weight.device()); }));
    return third(second(hidden));
  }
};

Training deep_training(const std::function<void(const Device&)>& in_backward = {}) {
  Training training = training_of_net();
  training.model = [in_backward] {
    manual_seed(7);
    return std::make_unique<Deep>(in_backward);
  };
  return training;
}

void take_steps(Strategy& strategy, int first, int last) {
  for (int step = first; step < last; ++step) {
    const auto batch = batch_of(step);
    strategy.step(batch.first, batch.second);
  }
}

// The number of all-reduces of buckets that have ended on the first device, in the flight record of this process.
int finished_buckets(const std::string& path) {
  flight::write(0, "request", path);
  const auto record = nlohmann::json::parse(std::ifstream(path));
  int finished = 0;
  for (const auto& group : record["groups"])
    for (const auto& each : group["operations"])
      finished += each.value("purpose", "") == "bucket" && each["state"] == "finished" ? 1 : 0;
  return finished;
}

TEST(Mirrored, BucketsAreAllReducedWhileBackwardRuns) {
  const std::string path = fmt::format("{}mirrored-flight-{}.json", ::testing::TempDir(), ::getpid());
  std::atomic<int> seen{0};
  const auto strategy = make_strategy("mirrored", deep_training([&](const Device& device) {
                                        if (&device != logical_devices(DeviceKind::kCpu)[0]) return;
                                        const auto deadline = std::chrono::steady_clock::now() + 60s;
                                        while ((seen = finished_buckets(path)) == 0) {
                                          ASSERT_LT(std::chrono::steady_clock::now(), deadline)
                                              << "no bucket is reduced before backward has ended";
                                          std::this_thread::sleep_for(1ms);
                                        }
                                      }),
                                      on_cpus(0, 2));
  take_steps(*strategy, 0, 1);
  EXPECT_GE(seen, 1);
  std::filesystem::remove(path);
}

TEST(Mirrored, SeveralBucketsGiveTheBitsOfDdp) {
  for (const int devices : {2, 3}) {
    std::vector<float> ddp;
    testing::expect_all_well(testing::run_ranks(devices, "threads", [&](std::shared_ptr<ProcessGroup> group) {
      const auto strategy = make_strategy("ddp", deep_training(), {.group = group});
      const Range rows{.start = group->rank() * kBatch / devices, .stop = (group->rank() + 1) * kBatch / devices};
      for (int step = 0; step < 4; ++step) {
        const auto batch = batch_of(step);
        strategy->step(slice(batch.first, 0, rows), slice(batch.second, 0, rows));
      }
      if (group->rank() == 0) ddp = weights_of(strategy->model());
    }));
    const auto strategy = make_strategy("mirrored", deep_training(), on_cpus(0, devices));
    take_steps(*strategy, 0, 4);
    for (nn::Module* replica : strategy->replicas()) EXPECT_EQ(weights_of(*replica), ddp) << devices << " devices";
  }
}

// Its hooks are silent outside of a step: nobody else would take part.
TEST(Mirrored, ABackwardOfTheUsersOwnReducesNothing) {
  const auto strategy = make_strategy("mirrored", deep_training(), on_cpus(0, 2));
  const auto plain = make_strategy("mirrored", deep_training(), on_cpus(0, 2));
  take_steps(*strategy, 0, 1);
  take_steps(*plain, 0, 1);
  const auto batch = batch_of(5);
  nn::cross_entropy(strategy->model()(batch.first), batch.second).backward();
  take_steps(*strategy, 1, 3);
  take_steps(*plain, 1, 3);
  EXPECT_EQ(weights_of(strategy->model()), weights_of(plain->model()));
}

// -- replicas

void expect_equal_state(Strategy& strategy, const std::string& when) {
  const std::vector<NamedTensor> first = strategy.model().state_dict();
  for (nn::Module* replica : strategy.replicas()) {
    const std::vector<NamedTensor> other = replica->state_dict();
    ASSERT_EQ(other.size(), first.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(other[i].tensor.bytes(), first[i].tensor.bytes());
      EXPECT_EQ(std::memcmp(other[i].tensor.buffer().data(), first[i].tensor.buffer().data(), first[i].tensor.bytes()),
                0)
          << first[i].name << " " << when;
    }
  }
}

// Weights and every buffer, at each moment at which a program can look.
TEST(Mirrored, ReplicasAreEqualAtAnyMoment) {
  const auto strategy = make_strategy("mirrored", training_of_net(), on_cpus(0, 3));
  const std::vector<NamedTensor> buffers = strategy->model().named_buffers();
  ASSERT_FALSE(buffers.empty());
  expect_equal_state(*strategy, "before the first step");
  take_steps(*strategy, 0, 2);
  expect_equal_state(*strategy, "after steps");
  const auto batch = batch_of(2);
  const Tensor mean = buffers[0].tensor.clone();
  {
    const NoGrad evaluating;
    strategy->model().eval();
    strategy->model()(batch.first);
    expect_equal_state(*strategy, "after an evaluation");
    strategy->model().train();
    strategy->model()(batch.first);  // moves the statistics of the first replica
  }
  EXPECT_NE(std::memcmp(mean.buffer().data(), buffers[0].tensor.buffer().data(), mean.bytes()), 0);
  expect_equal_state(*strategy, "after a forward pass in training mode");
  for (const NamedTensor& buffer : buffers) buffer.tensor.fill(0.25F);
  expect_equal_state(*strategy, "after a load, without update_replicas()");
  buffers[0].tensor.fill(0.5F);
  strategy->update_replicas();
  expect_equal_state(*strategy, "after update_replicas()");
  Tensor wrong = batch.second.clone();
  wrong.span<std::int64_t>()[kBatch - 1] = 99;  // the last device's, after it has moved its statistics
  EXPECT_THAT(message_of([&] { strategy->step(batch.first, wrong); }), HasSubstr("99"));
  expect_equal_state(*strategy, "after a step that failed");
  take_steps(*strategy, 3, 5);
  expect_equal_state(*strategy, "after steps that follow it");
}

// -- failures

// The cause, not what the other devices' threads see of it. The next step makes another group.
TEST(Mirrored, AFailureOfAnyDeviceEndsTheStepAndTheNextOneWorks) {
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<bool> fails{false};
    const auto strategy =
        make_strategy("mirrored", deep_training([&](const Device& device) {
                        if (fails && &device == on_cpus(0, 3).devices[static_cast<std::size_t>(failing)])
                          throw Error("the device is on fire");  // after the first buckets have gone
                      }),
                      on_cpus(0, 3));
    const auto plain = make_strategy("mirrored", deep_training(), on_cpus(0, 3));
    take_steps(*strategy, 0, 2);
    take_steps(*plain, 0, 2);
    fails = true;
    const auto batch = batch_of(9);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(message_of([&] { strategy->step(batch.first, batch.second); }), "the device is on fire");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s) << "no thread waits for its deadline";
    fails = false;
    take_steps(*strategy, 2, 4);
    take_steps(*plain, 2, 4);
    EXPECT_EQ(weights_of(strategy->model()), weights_of(plain->model())) << "device " << failing;
    expect_equal_state(*strategy, "at the end");
  }
}

}  // namespace
}  // namespace lockstep::train
