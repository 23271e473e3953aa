// The layers above the device interface, unchanged, on a simulated GPU: the numbers, and that the host never waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "lockstep/autograd/embedding.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/matmul.h"
#include "lockstep/autograd/normalization.h"
#include "lockstep/autograd/shapes.h"
#include "tests/support/device_training.h"
#include "tests/support/message_of.h"
#include "tests/support/recording_device.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(DeviceTensor, CopiesGoWhereTheySay) {
  RecordingDevice device;
  const std::array<float, 4> values = {1, 2, 3, 4};
  const Tensor host = Tensor::from<float>(values, {4});
  const Tensor there = host.to(device);
  EXPECT_EQ(&there.device(), &device);
  host.fill(9);  // the copy has its values already
  EXPECT_EQ(values_of(there), (std::vector<float>{1, 2, 3, 4}));
  const Tensor copy = there.clone();
  there.fill(5);
  EXPECT_EQ(values_of(copy), (std::vector<float>{1, 2, 3, 4}));
  there.copy_from(copy);
  EXPECT_EQ(values_of(there), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(Tensor::full({}, 7, device).item(), 7);
  const Tensor zeros = Tensor::zeros({3}, DType::kInt64, device).to(cpu_device());
  EXPECT_THAT(zeros.span<std::int64_t>(), Each(0));
}

TEST(DeviceTensor, ManyUploadsWaitForNothingUntilTheyFillTheirShare) {
  RecordingDevice device;
  device.hold_default_stream();
  std::vector<Tensor> there;
  for (int i = 0; i < 10; ++i) {
    Tensor host = Tensor::full({1000}, static_cast<float>(i));
    there.push_back(host.to(device));
    host.fill(-1);
  }
  EXPECT_EQ(device.counts().host_waits, 0);
  device.release_default_stream();
  for (int i = 0; i < 10; ++i) EXPECT_THAT(values_of(there[static_cast<std::size_t>(i)]), Each(static_cast<float>(i)));

  // 40 tensors of 4 MiB: more than may be in pinned memory at once.
  const Tensor large = Tensor::full({1 << 20}, 3), larger = Tensor::full({(1 << 20) + 1}, 4);
  device.clear_log();
  for (int i = 0; i < 40; ++i) large.to(device);
  EXPECT_LE(device.counts().host_waits, 40);
  device.clear_log();
  EXPECT_THAT(values_of(larger.to(device)), Each(4.0F));
  EXPECT_EQ(device.counts().host_waits, 2) << "one for the direct upload, one for the values";
}

TEST(DeviceTensor, GoesFromOneDeviceToAnotherInTheOrderOfBoth) {
  RecordingDevice first(0), second(1);
  const Tensor from = Tensor::full({1000}, 1, first), to = Tensor::full({1000}, 2, second);
  first.hold_default_stream();
  from.fill(3);
  to.copy_from(from);
  from.fill(4);
  EXPECT_EQ(first.counts().host_waits + second.counts().host_waits, 0);
  first.release_default_stream();
  EXPECT_THAT(values_of(to), Each(3.0F));
  EXPECT_THAT(values_of(from), Each(4.0F));
}

TEST(DeviceTensor, TheHostDoesNotFollowAPointerIntoAGpu) {
  RecordingDevice device(3);
  const Tensor there = Tensor::full({2}, 1, device);
  EXPECT_THAT(message_of([&] { there.span<float>(); }),
              AllOf(HasSubstr("(2) is on cuda:3"), HasSubstr("to(cpu_device())")));
}

TEST(DeviceOperators, RefuseInputsOnDifferentDevicesByName) {
  RecordingDevice device;
  const Tensor image = Tensor::zeros({1, 4, 4, 2}, DType::kFloat32, device), weight = Tensor::zeros({3, 1, 1, 2});
  const Tensor rows = Tensor::zeros({2, 3}, DType::kFloat32, device), matrix = Tensor::zeros({4, 3}),
               bias = Tensor::zeros({3});
  const Tensor labels = Tensor::zeros({2}, DType::kInt64);
  const auto names_both =
      AllOf(HasSubstr("cpu"), HasSubstr("cuda:0"), HasSubstr(".to(device)"), HasSubstr("DataLoaderOptions::device"));
  EXPECT_THAT(message_of([&] { conv2d(image, weight, {}); }), AllOf(HasSubstr("conv2d: weight"), names_both));
  EXPECT_THAT(message_of([&] { linear(rows, matrix, {}); }), AllOf(HasSubstr("linear: weight"), names_both));
  EXPECT_THAT(message_of([&] { bias_add(rows, bias); }), AllOf(HasSubstr("bias_add: bias"), names_both));
  EXPECT_THAT(message_of([&] { add(rows, Tensor::zeros({2, 3})); }), AllOf(HasSubstr("add: b"), names_both));
  EXPECT_THAT(message_of([&] { nn::cross_entropy(rows, labels); }),
              AllOf(HasSubstr("softmax_cross_entropy: labels"), names_both));
  EXPECT_THAT(message_of([&] { embedding(rows, labels); }), AllOf(HasSubstr("embedding: "), names_both));
  EXPECT_THAT(message_of([&] { layer_norm(rows, {3}, bias); }), AllOf(HasSubstr("layer_norm: weight"), names_both));
  EXPECT_THAT(message_of([&] { matmul(rows, Tensor::zeros({3, 2})); }), AllOf(HasSubstr("matmul: b"), names_both));
  EXPECT_THAT(message_of([&] { concat({rows, matrix}, 0); }), AllOf(HasSubstr("concat: "), names_both));
}

// The host does not wait for labels to check them: wrong labels show in the numbers, and nothing out of bounds is read.
TEST(DeviceOperators, ALabelThatIsNoClassMakesTheLossNaN) {
  RecordingDevice device;
  for (const std::int64_t label : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 40}) {
    const Tensor logits = Tensor::full({2, 3}, 1, device);
    require_grad(logits);
    const Tensor loss =
        nn::cross_entropy(logits, Tensor::from<std::int64_t>(std::array<std::int64_t, 2>{0, label}, {2}).to(device));
    loss.backward();
    EXPECT_TRUE(std::isnan(loss.item()));
    const std::vector<float> gradient = values_of(grad(logits));
    EXPECT_FALSE(std::isnan(gradient[0]));
    EXPECT_TRUE(std::isnan(gradient[3]) && std::isnan(gradient[4]) && std::isnan(gradient[5]));
  }
}

TEST(DeviceOperators, AModelThatStayedOnTheCpuIsNamedWithItsRemedy) {
  RecordingDevice device;
  SmallNet net;
  EXPECT_THAT(message_of([&] { net(small_batch(0).inputs().to(device)); }),
              AllOf(HasSubstr("conv2d: weight"), HasSubstr(".to(device)")));
}

TEST(DeviceTraining, FiveStepsGiveTheBitsOfTheCpu) {
  RecordingDevice device;
  const Training there = train_alone(device);
  EXPECT_EQ(there, train_alone(plain_cpu()));
  EXPECT_NE(there.losses.front(), there.losses.back()) << "it learns something";
}

TEST(DeviceTraining, TheHostFinishesStepsWhileTheDeviceIsHeld) {
  manual_seed(3);
  RecordingDevice device;
  SmallNet net;
  net.to(device);
  optim::SGD sgd(net.named_parameters(), {.lr = 0.05F, .momentum = 0.9F});
  const data::Batch host = small_batch(0), batch{host.inputs().to(device), host.targets().to(device)};
  const auto forward = [&](const Tensor& x) { return net(x); };
  Tensor loss = train_step(forward, sgd, batch);
  loss = train_step(forward, sgd, batch);  // next to the previous loss
  const std::uint64_t memory = device.allocator_stats().system_allocations;
  device.clear_log();
  device.hold_default_stream();
  for (int step = 0; step < 3; ++step) loss = train_step(forward, sgd, batch);
  EXPECT_EQ(device.counts().host_waits, 0);
  EXPECT_EQ(device.allocator_stats().system_allocations, memory) << "a step requests nothing from the system";
  EXPECT_EQ(device.counts().pool_calls, 0) << "nor the driver";
  device.release_default_stream();
  EXPECT_GT(loss.item(), 0);
  EXPECT_EQ(device.counts().host_waits, 1);
}

TEST(DeviceTraining, AModelMovesInTheMiddleWithGradientsAndMomenta) {
  const auto train = [](Device& before, Device& after) {
    manual_seed(3);
    SmallNet net;
    net.to(before);
    optim::SGD sgd(net.named_parameters(), {.lr = 0.05F, .momentum = 0.9F});
    const auto forward = [&](const Tensor& x) { return net(x); };
    for (int step = 0; step < 4; ++step) {
      Device& device = step < 2 ? before : after;
      if (step == 2) {
        // There is a gradient already: counting continues on the other device.
        nn::cross_entropy(net(small_batch(9).inputs().to(before)), small_batch(9).targets().to(before)).backward();
        net.to(after);
      }
      const data::Batch batch{small_batch(step).inputs().to(device), small_batch(step).targets().to(device)};
      if (step == 2) {
        nn::cross_entropy(net(batch.inputs()), batch.targets()).backward();
        sgd.step();
      } else {
        train_step(forward, sgd, batch);
      }
    }
    for (const auto& [name, momentum] : sgd.state()) EXPECT_EQ(&momentum.device(), &after) << name;
    return weights_of(net);
  };
  RecordingDevice device;
  EXPECT_EQ(train(plain_cpu(), device), train(plain_cpu(), plain_cpu()));
  EXPECT_EQ(train(device, plain_cpu()), train(plain_cpu(), plain_cpu()));
}

TEST(DeviceTraining, AGradientThatStayedBehindIsNamed) {
  RecordingDevice device;
  const Tensor weight = Tensor::full({3}, 1);
  require_grad(weight);
  l2_loss(weight).backward();
  weight.rebind(weight.to(device).buffer());  // inside Module::to
  clear_grad(weight);
  EXPECT_THAT(message_of([&] { l2_loss(weight).backward(); }),
              AllOf(HasSubstr("gradient"), HasSubstr("on cpu"), HasSubstr("on cuda:0"), HasSubstr("Module::to")));
}

TEST(DeviceTraining, ParametersOnTwoDevicesAreRefused) {
  RecordingDevice device;
  nn::Linear first(2, 2), second(2, 2);
  std::vector<NamedTensor> parameters = first.named_parameters();
  parameters.push_back({"second", second.weight});
  optim::SGD sgd(parameters, {.lr = 1});
  first.to(device);
  EXPECT_THAT(message_of([&] { sgd.step(); }),
              AllOf(HasSubstr("'second' is on cpu, but the first one is on cuda:0"), HasSubstr(".to(device)")));
}

}  // namespace
}  // namespace lockstep::testing
