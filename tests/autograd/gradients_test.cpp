// gradients(): with respect to chosen tensors, independent of grad() and hooks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lockstep/autograd/node.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

TEST(Gradients, OfLeavesAndResultsInTheOrderAskedFor) {
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3);
  const Tensor middle = add(scale(x, 4), y), loss = add(scale(middle, 10), scale(x, 1));
  const std::vector<Tensor> found = gradients(loss, {y, middle, x, loss});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].item(), 10);
  EXPECT_EQ(found[1].item(), 10);
  EXPECT_EQ(found[2].item(), 41);
  EXPECT_EQ(found[3].item(), 1);
}

TEST(Gradients, AreTheSameBitsAsThoseOfBackward) {
  manual_seed(3);
  const Tensor x = random_leaf({4, 6}), weight = random_leaf({5, 6}), bias = random_leaf({5});
  const auto loss = [&] {
    return l2_loss(add(linear(x, weight, bias, Activation::kReLU), linear(x, weight, Tensor())));
  };
  loss().backward();
  const std::vector<Tensor> found = gradients(loss(), {x, weight, bias});
  const std::vector<Tensor> leaves = {x, weight, bias};
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_EQ(found[i].shape(), leaves[i].shape());
    const auto mine = found[i].span<float>(), theirs = grad(leaves[i]).span<float>();
    EXPECT_TRUE(std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) << "leaf " << i;
  }
}

TEST(Gradients, TouchNoGradAndCallNoGradHook) {
  const Tensor x = scalar_leaf(2);
  scale(x, 3).backward();
  int calls = 0;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) { ++calls; });
  const Tensor loss = scale(x, 5);
  register_backward_end_hook(loss, [&] { ++calls; });
  EXPECT_EQ(gradients(loss, {x})[0].item(), 5);
  EXPECT_EQ(grad(x).item(), 3);
  EXPECT_EQ(calls, 0);
  const Tensor fresh = scalar_leaf(1);
  gradients(scale(fresh, 2), {fresh});
  EXPECT_FALSE(has_grad(fresh));
  EXPECT_FALSE(grad(fresh).defined());
}

TEST(Gradients, OfSeveralRootsAreThoseOfTheirWeightedSum) {
  const Tensor x = scalar_leaf(2), wide = Tensor::full({2}, 1);
  require_grad(wide);
  const Tensor a = scale(x, 3), b = scale(a, 5);
  EXPECT_EQ(gradients(std::vector{a, b}, {x})[0].item(), 18) << "one root depends on the other";
  EXPECT_EQ(gradients(std::vector{x, x}, {x})[0].item(), 2);
  const auto found =
      gradients(std::vector{scale(x, 3), scale(wide, 2)}, {x, wide}, {.gradients = {Tensor(), Tensor::full({2}, 7)}});
  EXPECT_EQ(found[0].item(), 3);
  EXPECT_EQ(found[1].span<float>()[1], 14);
  EXPECT_THROW(gradients(std::vector{scale(x, 3), scale(x, 2)}, {x}, {.gradients = {Tensor::full({}, 1)}}),
               InvalidArgument);
  EXPECT_THROW(gradients(std::vector<Tensor>{}, {x}), InvalidArgument);
}

TEST(Gradients, AnInputGivenTwiceHasOneGradient) {
  const Tensor x = scalar_leaf(2);
  const Tensor middle = scale(x, 3);
  const auto found = gradients(scale(middle, 2), {x, middle, x, middle});
  EXPECT_EQ(found[2].item(), 6);
  EXPECT_EQ(found[3].item(), 2);
}

TEST(Gradients, RunOnlyTheNodesInBetween) {
  struct Counting : Node {
    Counting(std::vector<Tensor> inputs, int& counter) : Node(std::move(inputs)), runs(counter) {}
    const char* name() const override { return "counting"; }
    void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
      ++runs;
      targets[0].give(result_grad);
    }
    int& runs;
  };
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3);
  int below_x = 0, below_y = 0;
  const Tensor counted_x = Tensor::full({}, 2), counted_y = Tensor::full({}, 3);
  attach(counted_x, std::make_shared<Counting>(std::vector{x}, below_x));
  attach(counted_y, std::make_shared<Counting>(std::vector{y}, below_y));
  const Tensor loss = add(scale(counted_x, 1), scale(counted_y, 1));
  gradients(loss, {x}, {.retain_graph = true});
  EXPECT_EQ(below_x, 1);
  EXPECT_EQ(below_y, 0);
  gradients(loss, {counted_x}, {.retain_graph = true});
  EXPECT_EQ(below_x, 1) << "nodes below a requested result are not needed";
  loss.backward();
  EXPECT_EQ(below_x + below_y, 3);
}

TEST(Gradients, AnInputWithoutInfluenceIsNamedAndTheTapeStays) {
  const Tensor x = scalar_leaf(2), other = scalar_leaf(3);
  set_name(other, "block.bias");
  const Tensor loss = scale(x, 3);
  EXPECT_EQ(
      message_of([&] {
        gradients(loss, {x, other});
      }),
      "gradients: none of the differentiated tensors depends on inputs[1], parameter 'block.bias' of shape (): leave "
      "it out, or get an "
      "undefined tensor for it with .allow_unused = true");
  EXPECT_NE(message_of([&] { gradients(loss, {scale(loss, 2)}); }).find("inputs[0], a tensor of shape ()"),
            std::string::npos);
  EXPECT_NE(message_of([&] { gradients(loss, {Tensor::full({}, 1)}); }).find("requires no gradient"),
            std::string::npos);
  EXPECT_NE(message_of([&] { gradients(loss, {Tensor()}, {.allow_unused = true}); }).find("undefined"),
            std::string::npos);
  const auto found = gradients(loss, {other, x}, {.allow_unused = true});
  EXPECT_FALSE(found[0].defined());
  EXPECT_EQ(found[1].item(), 3);
}

TEST(Gradients, FreeTheTapeUnlessItIsRetained) {
  const Tensor x = random_leaf({64, 64});
  const std::size_t idle = cpu_device().allocator_stats().bytes_in_use;
  const Tensor loss = l2_loss(relu(scale(x, 2)));
  gradients(loss, {x}, {.retain_graph = true});
  gradients(loss, {x});
  EXPECT_LT(cpu_device().allocator_stats().bytes_in_use, idle + 1024);
  EXPECT_THROW(gradients(loss, {x}), InvalidArgument);
}

TEST(Gradients, AreNotAvailableWithinAPass) {
  const Tensor x = scalar_leaf(2);
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) { gradients(scale(x, 1), {x}); });
  EXPECT_THROW(scale(x, 1).backward(), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
