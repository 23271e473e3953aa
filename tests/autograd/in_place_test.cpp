// A tensor that several operators read, and tensors whose values change between forward and backward.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

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

// w applied twice to x: the gradient of sum(w (w x)) is that of both places.
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
  save_checkpoint(folder, {.model = layer});
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
      {"load", [&] { EXPECT_TRUE(load_checkpoint(folder, {.model = layer})); }},
      {"mark_changed", [&] { weight.mark_changed(); }},
  };
  for (const auto& [name, change] : changes) {
    const Tensor loss = l2_loss(linear(Tensor::full({1, 2}, 1), weight, Tensor()));
    const Tensor of_weight = l2_loss(weight);
    change();
    EXPECT_NE(message_of([&] { of_weight.backward(); }).find("was changed after l2_loss read it"), std::string::npos) << name;
    EXPECT_EQ(message_of([&] { loss.backward(); }), "nothing was thrown") << name << ": x's gradient is not wanted, w is not read";
  }
  std::filesystem::remove_all(folder);
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
  EXPECT_THROW(l2_loss(detach(leaf)).backward(), InvalidArgument) << "nothing wants a gradient";
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
