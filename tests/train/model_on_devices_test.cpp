// Models whose parts are placed on several devices by hand, with to_device() between them, alone and in
// DistributedDataParallel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/strategy_training.h"
#include "tests/train/two_paths.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

// Two layers on two devices, as in PyTorch's tutorial on DistributedDataParallel with model parallelism.
struct TwoDeviceModel : nn::Module {
  nn::Linear net1{10, 10, {.activation = Activation::kReLU}}, net2{10, 3};
  Device &first, &second;
  TwoDeviceModel(Device& first, Device& second) : first(first), second(second) {
    add("net1", net1);
    add("net2", net2);
    net1.to(first);
    net2.to(second);
  }
  Tensor forward(const Tensor& x) override { return net2(to_device(net1(to_device(x, first)), second)); }
};

Tensor numbers(const Shape& shape) {
  Philox random(5, random_stream(RandomUse::kProgram, 1));
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  for (float& value : values) value = random.normal();
  return Tensor::from<float>(values, shape);
}

std::vector<float> gradients_of(nn::Module& model) {
  std::vector<float> all;
  for (const Tensor& parameter : model.parameters()) {
    const Tensor host = grad(parameter).to(cpu_device());
    all.insert(all.end(), host.span<float>().begin(), host.span<float>().end());
  }
  return all;
}

TEST(ToDevice, GradientsComeBack) {
  const auto cpus = on_cpus(0, 2).devices;
  const Tensor x = numbers({2, 3});
  require_grad(x);
  const Tensor there = to_device(x, *cpus[1]);
  EXPECT_EQ(&there.device(), cpus[1]);
  EXPECT_TRUE(to_device(x, *cpus[0]).is_same(x));
  sum(there * there).backward();
  EXPECT_EQ(&grad(x).device(), cpus[0]);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(grad(x).span<float>()[i], 2 * x.span<float>()[i]);
  EXPECT_THAT(message_of([&] { to_device({}, *cpus[1]); }), HasSubstr("to_device"));
}

TEST(ToDevice, PathsOnTwoDevicesAreThoseOfOne) {
  const auto cpus = on_cpus(0, 2).devices;
  manual_seed(3);
  TwoPaths split(6, 2, *cpus[0], *cpus[1]);
  manual_seed(3);
  TwoPaths whole(6, 2, *cpus[0], *cpus[0]);
  const Tensor x = numbers({5, 6});
  sum(split(x)).backward();
  sum(whole(x)).backward();
  EXPECT_EQ(gradients_of(split), gradients_of(whole));
  EXPECT_EQ(&grad(split.right.weight).device(), cpus[1]);
}

// Model parallelism inside each replica: one DDP over a module on two devices, or one for each device's part.
enum class Wrapped { kWholeOnOneDevice, kWholeOnTwo, kEachPart };

std::vector<std::vector<float>> train_two_devices(int ranks, Wrapped wrapped) {
  const auto cpus = on_cpus(0, 4).devices;
  const Tensor inputs = numbers({8, 10});
  std::vector<std::vector<float>> weights(static_cast<std::size_t>(ranks));
  testing::expect_all_well(testing::run_ranks(ranks, "threads", [&](std::shared_ptr<ProcessGroup> group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const bool split = wrapped != Wrapped::kWholeOnOneDevice;
    manual_seed(3);
    TwoDeviceModel model(*cpus[split ? 2 * rank : 0], *cpus[split ? 2 * rank + 1 : 0]);
    std::vector<std::unique_ptr<DistributedDataParallel>> ddp;
    for (nn::Module* part : wrapped == Wrapped::kEachPart ? std::vector<nn::Module*>{&model.net1, &model.net2}
                                                          : std::vector<nn::Module*>{&model})
      ddp.push_back(std::make_unique<DistributedDataParallel>(*part, group));
    // An optimizer updates the parameters of one device.
    optim::SGD first(model.net1.named_parameters(), {.lr = 0.1F}), second(model.net2.named_parameters(), {.lr = 0.1F});
    const Tensor rows = slice(inputs, 0, {.start = group->rank() * 8 / ranks, .stop = (group->rank() + 1) * 8 / ranks});
    for (int step = 0; step < 20; ++step) {
      first.zero_grad(), second.zero_grad();
      const Tensor y = ddp.size() == 1 ? (*ddp[0])(rows)
                                       : (*ddp[1])(to_device((*ddp[0])(to_device(rows, model.first)), model.second));
      mean(y * y).backward();
      first.step(), second.step();
    }
    weights[rank] = weights_of(model);
  }));
  return weights;
}

TEST(ToDevice, AModelOnTwoDevicesTrainsInDdp) {
  const auto whole = train_two_devices(2, Wrapped::kWholeOnOneDevice);
  for (const Wrapped wrapped : {Wrapped::kWholeOnTwo, Wrapped::kEachPart}) {
    const auto split = train_two_devices(2, wrapped);
    EXPECT_EQ(split[0], split[1]) << "replicas are equal";
    EXPECT_EQ(split[0], whole[0]) << "bitwise those of a module on one device";
  }
  EXPECT_LT(largest_difference(whole[0], train_two_devices(1, Wrapped::kWholeOnOneDevice)[0]), 1e-5F)
      << "one process with all samples gets the same";
}

}  // namespace
}  // namespace lockstep::train
