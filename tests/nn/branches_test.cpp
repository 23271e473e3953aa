// nn::Branches: joins, inputs, placement by hand, and what it refuses.
#include "lockstep/nn/branches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "lockstep/core/logical_devices.h"
#include "lockstep/nn/added_losses.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

Tensor samples() {
  const Tensor x = Tensor::empty({4, 3});
  fill_uniform(x, -1, 1);
  require_grad(x);
  return x;
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu_device());
  return {host.span<float>().begin(), host.span<float>().end()};
}

TEST(Branches, ConcatenatesAddsOrReturnsAll) {
  for (const Join join : {Join::kConcat, Join::kAdd, Join::kNone}) {
    manual_seed(2);
    Branches net({.join = join});
    auto& left = net.append<Linear>(3, 2);
    auto& right = net.append_named<Linear>("right", 3, 2);
    const Tensor x = samples();
    const Tensors y = net(Tensors{x});
    const Tensor a = left(x), b = right(x);
    if (join == Join::kNone) {
      ASSERT_EQ(y.size(), 2u);
      EXPECT_EQ(values_of(y[0]), values_of(a));
      EXPECT_EQ(values_of(y[1]), values_of(b));
    } else {
      ASSERT_EQ(y.size(), 1u);
      EXPECT_EQ(values_of(y[0]), values_of(join == Join::kAdd ? a + b : concat({a, b}, 1)));
    }
    EXPECT_EQ(net.named_parameters()[2].name, "right.weight");
  }
  Branches rows({.axis = 0});
  rows.append<Linear>(3, 2);
  rows.append<Linear>(3, 2);
  EXPECT_EQ(rows(samples()).shape(), (Shape{8, 2}));
}

TEST(Branches, TakeOneInputEach) {
  manual_seed(2);
  Branches net({.join = Join::kAdd, .one_input_each = true});
  auto& left = net.append<Linear>(3, 2);
  auto& right = net.append<Linear>(5, 2);
  const Tensor x = samples(), z = Tensor::full({4, 5}, 0.5F);
  EXPECT_EQ(values_of(net(x, z)), values_of(left(x) + right(z)));
  EXPECT_THAT(message_of([&] { net(x); }),
              HasSubstr("Branches: got 1 inputs; expected one for each of its 2 branches"));
}

// A branch that adds a loss, as a regularizer does.
struct Penalized : Module {
  Linear linear{3, 2};
  Penalized() { add("linear", linear); }
  Tensor forward(const Tensor& x) override {
    add_loss(0.1F * l2_loss(linear.weight), "penalty");
    return linear(x);
  }
};

TEST(Branches, AddTheLossesOfTheirModulesInOrder) {
  std::vector<std::vector<float>> gradients;
  for (const int devices : {1, 2}) {
    manual_seed(2);
    Branches net;
    auto& first = net.append<Penalized>();
    auto& second = net.append<Penalized>();
    const auto cpus = logical_devices(DeviceKind::kCpu);
    net.place({cpus[0], cpus[static_cast<std::size_t>(devices - 1)]});
    const Tensor x = samples();
    const AddedLosses added;
    const Tensor y = net(x);
    ASSERT_EQ(added.all().size(), 2u);
    EXPECT_EQ(added.all()[1].name, "penalty");
    added.total(sum(y)).backward();
    gradients.push_back(values_of(grad(first.linear.weight)));
    for (const float each : values_of(grad(second.linear.weight))) gradients.back().push_back(each);
    const NoGrad evaluating;
    net(x);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  Branches alone;
  alone.append<Penalized>();
  EXPECT_THAT(message_of([&] { alone(samples()); }), HasSubstr("whose losses nobody collects"));
}

TEST(Branches, PlacedByHandHaveTheBitsOfOneDevice) {
  const auto cpus = logical_devices(DeviceKind::kCpu);
  std::vector<std::vector<float>> results;
  for (const auto& devices : {std::vector<Device*>{cpus[0]}, {cpus[0], cpus[1]}, {cpus[1], cpus[0]}}) {
    manual_seed(2);
    Branches net;
    auto& left = net.append<Sequential>();
    left.append<Linear>(3, 4);
    left.append<Dropout>(0.5F);
    net.append<Linear>(3, 4);
    net.append<Dropout>(0.5F);
    net.place(devices);
    const Tensor x = samples();
    const Tensor y = net(x);
    EXPECT_EQ(&y.device(), cpus[0]) << "that of the input";
    EXPECT_EQ(&net.branch(1).parameters()[0].device(), devices[1 % devices.size()]);
    sum(y * y).backward();
    results.push_back(values_of(y));
    for (const Tensor& each : {grad(x), grad(net.parameters()[0]), grad(net.parameters()[2])})
      for (const float value : values_of(each)) results.back().push_back(value);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(Branches, CountWhatTheirDevicesSendAndReceive) {
  const auto cpus = logical_devices(DeviceKind::kCpu);
  Branches net;
  net.append<Linear>(3, 4);
  net.append<Linear>(3, 5);
  net.place({cpus[0], cpus[1]});
  const Tensor x = samples();
  sum(net(x)).backward();
  EXPECT_EQ(net.traffic(0).sent + net.traffic(0).received, 0u);
  EXPECT_EQ(net.traffic(1).received, (4 * 3 + 4 * 5) * sizeof(float)) << "inputs, and the gradient of the outputs";
  EXPECT_EQ(net.traffic(1).sent, (4 * 5 + 4 * 3) * sizeof(float));
}

TEST(Branches, WhatIsRefused) {
  Branches none;
  EXPECT_THAT(message_of([&] { none(samples()); }), HasSubstr("Branches: it has no branch"));
  EXPECT_THAT(message_of([&] { none.place({}); }), HasSubstr("Branches::place: got no device"));
  Branches nested;
  nested.append<Branches>(BranchesOptions{.join = Join::kNone}).append<Linear>(3, 2);
  dynamic_cast<Branches&>(nested.branch(0)).append<Linear>(3, 2);
  EXPECT_THAT(message_of([&] { nested(samples()); }), HasSubstr("Branches"));
  std::ostringstream text;
  text << nested;
  EXPECT_THAT(text.str(), HasSubstr("(0): Branches(join=none\n"));
}

}  // namespace
}  // namespace lockstep::nn
