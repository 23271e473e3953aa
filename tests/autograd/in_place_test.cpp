// Tensors that several operators read, and tensors whose values change between forward and backward.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/train/checkpoint.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary.h"

namespace lockstep {
namespace {

TEST(UsedTwice, GradientsOfAllUsesAddUp) {
  const Tensor x = Tensor::full({}, 3);
  require_grad(x);
  add(x, x).backward();
  EXPECT_EQ(grad(x).item(), 2) << "twice by one operator";
  clear_grad(x);
  const Tensor middle = scale(x, 5);
  add(add(middle, middle), scale(middle, 2)).backward();
  EXPECT_EQ(grad(x).item(), 20) << "a result";
}

// w is applied twice to x: the gradient of sum(w (w x)) includes both uses.
TEST(UsedTwice, TiedWeights) {
  manual_seed(1);
  const Tensor x = random_leaf({3, 4}), weight = random_leaf({4, 4});
  check_gradients({x, weight}, [&] { return weigh(linear(linear(x, weight, Tensor()), weight, Tensor())); });
}

TEST(InPlace, EveryChangeBetweenForwardAndBackwardIsRefused) {
  const std::string folder = testing::temporary("in-place");
  nn::Linear layer(2, 2, {.bias = false});
  const Tensor& weight = layer.weight;
  optim::SGD sgd(layer.named_parameters(), {.lr = 0.5f});
  train::save_checkpoint(folder, {.model = layer});
  l2_loss(weight).backward();  // step() has a gradient to apply
  const std::map<std::string, std::function<void()>> changes = {
      {"fill", [&] { weight.fill(1); }},
      {"copy_from",
       [&] {
         weight.copy_from(Tensor::full({2, 2}, 1));
       }},
      {"through a view", [&] { weight.reshaped({4}).fill(1); }},
      {"through detach()", [&] { detach(weight).fill(1); }},
      {"rebind", [&] { weight.rebind(weight.clone().buffer()); }},
      {"random values", [&] { fill_uniform(weight, 0, 1); }},
      {"optimizer's step", [&] { sgd.step(); }},
      {"load", [&] { EXPECT_TRUE(train::load_checkpoint(folder, {.model = layer})); }},
      {"mark_changed", [&] { weight.mark_changed(); }},
  };
  for (const auto& [name, change] : changes) {
    const Tensor loss = l2_loss(linear(Tensor::full({1, 2}, 1), weight, Tensor()));
    const Tensor of_weight = l2_loss(weight);
    change();
    EXPECT_NE(message_of([&] { of_weight.backward(); }).find("was changed after l2_loss read it"), std::string::npos)
        << name;
    EXPECT_EQ(message_of([&] { loss.backward(); }), "nothing was thrown")
        << name << ": x's gradient is not wanted, so w is not read";
  }
  std::filesystem::remove_all(folder);
}

// After `change` of a result of scale(), a recorded operator and backward throw, and say why; unrecorded ones read the
// new values.
void expect_refused(const std::string& name, const std::function<void(const Tensor& result)>& change) {
  const Tensor weight = random_leaf({2, 2});
  const Tensor changed = scale(weight, 3);
  const Tensor before = l2_loss(scale(changed, 2));  // reads the old values
  change(changed);
  const std::string reason =
      " a tensor of shape (2, 2) was changed in place after scale computed it (version 0 expected, 1 found)";
  EXPECT_NE(message_of([&] { (void)relu(changed); }).find("relu:" + reason), std::string::npos) << name;
  EXPECT_NE(message_of([&] { (void)reshape(changed, {4}); }).find("reshape:" + reason), std::string::npos) << name;
  EXPECT_NE(message_of([&] { (void)checkpoint([](const Tensor& x) { return relu(x); }, changed); }).find(reason),
            std::string::npos)
      << name;
  EXPECT_NE(message_of([&] {
              changed.backward({.gradient = Tensor::full({2, 2}, 1)});
            }).find("backward:" + reason),
            std::string::npos)
      << name;
  EXPECT_NE(message_of([&] {
              gradients(changed, {weight}, {.gradients = {Tensor::full({2, 2}, 1)}});
            }).find("backward:" + reason),
            std::string::npos)
      << name;
  EXPECT_FALSE(has_grad(weight)) << name;
  EXPECT_FALSE(requires_grad(relu(detach(changed)))) << name;
  {
    const NoGrad none;
    EXPECT_NO_THROW((void)relu(changed)) << name;
  }
  before.backward();
  EXPECT_TRUE(has_grad(weight)) << name << ": what read the old values has their gradient";
}

TEST(InPlace, AResultThatWasChangedIsNotTakenForWhatItWasComputedFrom) {
  expect_refused("fill", [](const Tensor& result) { result.fill(0); });
  expect_refused("copy_from a constant", [](const Tensor& result) { result.copy_from(Tensor::full({2, 2}, 1)); });
  expect_refused("copy_from another result", [](const Tensor& result) {
    result.copy_from(scale(random_leaf({2, 2}), 7));
  });
  expect_refused("through a view", [](const Tensor& result) { result.reshaped({4}).fill(1); });
  expect_refused("through a recorded view", [](const Tensor& result) { reshape(result, {4}).fill(1); });
  expect_refused("through detach()", [](const Tensor& result) { detach(result).fill(1); });
  expect_refused("rebind", [](const Tensor& result) { result.rebind(result.clone().buffer()); });
  expect_refused("random values", [](const Tensor& result) { fill_normal(result, 0, 1); });
  expect_refused("under NoGrad", [](const Tensor& result) {
    const NoGrad none;
    result.fill(1);
  });
  expect_refused("span() and mark_changed", [](const Tensor& result) {
    result.span<float>()[0] = 1;
    result.mark_changed();
  });
}

TEST(InPlace, AViewOfAResultThatWasChangedIsRefused) {
  const Tensor weight = random_leaf({2, 2});
  const Tensor result = scale(weight, 3), view = reshape(result, {4});
  result.fill(0);
  EXPECT_NE(message_of([&] { (void)relu(view); }).find("was changed in place after"), std::string::npos);
}

// A view of a parameter has the parameter's new values.
TEST(InPlace, AViewOfALeafFollowsItsLeaf) {
  const Tensor weight = random_leaf({2, 2});
  const Tensor view = reshape(reshape(weight, {4}), {1, 4});
  weight.fill(5);
  l2_loss(view).backward();
  EXPECT_EQ(grad(weight).span<float>()[3], 5);
}

TEST(InPlace, AMessageNamesBothVersions) {
  const Tensor weight = random_leaf({2, 2});
  const Tensor loss = l2_loss(weight);
  const std::uint64_t read = weight.version();
  weight.fill(1);
  weight.fill(2);
  EXPECT_NE(message_of([&] { loss.backward(); }).find(fmt::format("(version {} expected, {} found)", read, read + 2)),
            std::string::npos);
}

// A usual training loop: steps, gradients in bound memory, a tape that is kept, and no false errors.
TEST(InPlace, StepsOfATrainingAreNotRefused) {
  manual_seed(1);
  nn::Linear first(4, 3), last(3, 1);
  std::vector<NamedTensor> parameters = first.named_parameters();
  for (const auto& [name, tensor] : last.named_parameters()) parameters.push_back({"last." + name, tensor});
  for (const NamedTensor& parameter : parameters)
    bind_grad(parameter.tensor, cpu_device().allocate(parameter.tensor.bytes()));
  optim::SGD sgd(parameters, {.lr = 0.1F, .momentum = 0.9F});
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    const Tensor loss =
        l2_loss(last(checkpoint([&](const Tensor& x) { return relu(first(x)); }, Tensor::full({2, 4}, 1))));
    loss.backward({.retain_graph = true});
    loss.backward();
    sgd.step();
  }
}

TEST(InPlace, AGradientThatAnOperatorReadIsChangedByTheNextPass) {
  const Tensor x = random_leaf({1, 2}), weight = random_leaf({2, 2});
  l2_loss(x).backward();
  const Tensor loss = l2_loss(linear(grad(x), weight, Tensor()));
  l2_loss(x).backward();
  EXPECT_NE(message_of([&] { loss.backward(); }).find("was changed after linear read it"), std::string::npos);
}

TEST(Detach, SharesMemoryAndVersionAndHasNoHistory) {
  const Tensor leaf = random_leaf({2, 2});
  const Tensor result = scale(leaf, 2);
  for (const Tensor& tensor : {leaf, result}) {
    const Tensor detached_one = detach(tensor);
    EXPECT_FALSE(requires_grad(detached_one));
    EXPECT_TRUE(requires_grad(tensor));
    EXPECT_EQ(detached_one.buffer().data(), tensor.buffer().data());
    EXPECT_EQ(detached_one.shape(), tensor.shape());
    const Tensor loss = l2_loss(tensor);
    detached_one.fill(1);
    EXPECT_EQ(detached_one.version(), tensor.version());
    EXPECT_NE(message_of([&] { loss.backward(); }).find("was changed after l2_loss read it"), std::string::npos);
  }
  EXPECT_THROW(l2_loss(detach(leaf)).backward(), InvalidArgument) << "nothing requires a gradient";
  EXPECT_THROW(detach(Tensor()), InvalidArgument);
}

TEST(Detach, StopsTheGradient) {
  const Tensor x = Tensor::full({}, 3);
  require_grad(x);
  const Tensor middle = scale(x, 2);
  add(scale(middle, 5), scale(detach(middle), 100)).backward();
  EXPECT_EQ(grad(x).item(), 10);
}

TEST(NoGradAndEnableGrad, Nest) {
  const Tensor x = random_leaf({2});
  const NoGrad none;
  EXPECT_FALSE(requires_grad(scale(x, 1)));
  {
    const EnableGrad enabled;
    EXPECT_TRUE(requires_grad(scale(x, 1)));
    const NoGrad again;
    EXPECT_FALSE(requires_grad(scale(x, 1)));
  }
  EXPECT_FALSE(requires_grad(scale(x, 1)));
}

}  // namespace
}  // namespace lockstep
