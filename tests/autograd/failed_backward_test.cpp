// Passes that end by an exception: the tape is freed, and the next pass works normally.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/node.h"
#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

constexpr std::size_t kSmall = 1024;  // a few scalars

std::size_t bytes_in_use() { return cpu_device().allocator_stats().bytes_in_use; }

// Passes its gradient on, or throws.
class FaultyNode : public Node {
 public:
  FaultyNode(std::vector<Tensor> inputs, const bool& fails) : Node(std::move(inputs)), fails_(fails) {}
  const char* name() const override { return "faulty"; }
  void backward(const Tensor& result_grad, std::span<const GradTarget> targets) override {
    if (fails_) throw Error("a node that fails");
    targets[0].give(result_grad);
  }

 private:
  const bool& fails_;
};

Tensor faulty(const Tensor& x, const bool& fails) {
  const Tensor y = x.clone();
  if (recording(std::vector{x})) attach(y, std::make_shared<FaultyNode>(std::vector{x}, fails));
  return y;
}

struct Net {
  Tensor x = Tensor::full({64, 64}, 0.5f), first = random_leaf({64, 64}, -0.1f, 0.1f),
         second = random_leaf({64, 64}, -0.1f, 0.1f);
  bool node_fails = false;
  std::function<void()> in_block = [] {};

  Tensor block(const Tensor& input) const {
    in_block();
    return linear(faulty(linear(input, first, Tensor()), node_fails), second, Tensor(), Activation::kReLU);
  }
  Tensor plain() const { return l2_loss(block(block(x))); }
  Tensor nested() const {
    const auto inner = [this](const Tensor& input) { return block(input); };
    return l2_loss(
        checkpoint([&, inner](const Tensor& input) { return checkpoint(inner, relu(checkpoint(inner, input))); }, x));
  }
};

// The loss, whose handle lives on, fails with the message; then the memory of its tape is free, and a step computes its
// usual result.
void expect_freed(Net& net, const std::function<Tensor()>& loss_of, const std::function<void(bool)>& set_broken,
                  const std::string& message, const BackwardOptions& options = {}) {
  loss_of().backward();
  const std::vector<float> expected(grad(net.first).span<float>().begin(), grad(net.first).span<float>().end());
  const std::size_t idle = bytes_in_use();
  const Tensor loss = loss_of();
  set_broken(true);
  EXPECT_EQ(message_of([&] { loss.backward(options); }), message);
  set_broken(false);
  EXPECT_FALSE(in_backward());
  EXPECT_LE(bytes_in_use(), idle + kSmall) << "the loss is alive, its tape is not";
  EXPECT_THROW(loss.backward(), InvalidArgument);
  clear_grad(net.first);
  clear_grad(net.second);
  loss_of().backward();
  const std::vector<float> now(grad(net.first).span<float>().begin(), grad(net.first).span<float>().end());
  EXPECT_EQ(now, expected);
}

TEST(FailedBackward, FreesTheTapeWhenANodeThrows) {
  Net net;
  expect_freed(
      net, [&] { return net.plain(); }, [&](bool broken) { net.node_fails = broken; }, "a node that fails");
}

TEST(FailedBackward, FreesTheTapeAlsoWithRetainGraph) {
  Net net;
  expect_freed(
      net, [&] { return net.plain(); }, [&](bool broken) { net.node_fails = broken; }, "a node that fails",
      {.retain_graph = true});
}

TEST(FailedBackward, FreesTheTapeWhenAHookThrows) {
  Net net;
  bool hook_fails = false;
  const HookHandle hook = register_grad_hook(net.second, [&](const Tensor&) {
    if (hook_fails) throw Error("a hook that fails");
  });
  expect_freed(
      net, [&] { return net.plain(); }, [&](bool broken) { hook_fails = broken; }, "a hook that fails");
}

TEST(FailedBackward, FreesNestedCheckpointsWhenANodeThrows) {
  Net net;
  expect_freed(
      net, [&] { return net.nested(); }, [&](bool broken) { net.node_fails = broken; }, "a node that fails");
}

TEST(FailedBackward, FreesNestedCheckpointsWhenAHookThrows) {
  Net net;
  bool hook_fails = false;
  const HookHandle hook = register_grad_hook(net.second, [&](const Tensor&) {
    if (hook_fails) throw Error("a hook that fails");
  });
  expect_freed(
      net, [&] { return net.nested(); }, [&](bool broken) { hook_fails = broken; }, "a hook that fails");
}

TEST(FailedBackward, FreesNestedCheckpointsWhenTheFunctionThrows) {
  Net net;
  bool function_fails = false;
  int runs = 0;
  net.in_block = [&] {
    if (function_fails && ++runs == 2) throw Error("a function that fails");  // after an entire block of the second run
  };
  const RandomState before = random_state();
  expect_freed(
      net, [&] { return net.nested(); }, [&](bool broken) { function_fails = broken; }, "a function that fails");
  EXPECT_EQ(random_state(), before);
  EXPECT_FALSE(NoGrad::active());
}

TEST(FailedBackward, AFunctionThatThrowsInForwardLeavesNothing) {
  Net net;
  const std::size_t idle = bytes_in_use();
  int runs = 0;
  net.in_block = [&] {
    if (++runs == 2) throw Error("a function that fails");
  };
  EXPECT_EQ(message_of([&] { net.nested(); }), "a function that fails");
  EXPECT_EQ(bytes_in_use(), idle);
  net.in_block = [] {};
  net.nested().backward();
  EXPECT_TRUE(has_grad(net.first));
}

// Memory that a failed node was the first to write holds no gradient: the next pass must not add to it.
TEST(FailedBackward, AnIncompleteGradientIsNone) {
  bool fails = true;
  const Tensor x = random_leaf({2});
  const Tensor y = reshape(faulty(x, fails), {2});
  EXPECT_THROW(y.backward({.gradient = Tensor::full({2}, 1)}), Error);
  EXPECT_FALSE(has_grad(x));
  fails = false;
  faulty(x, fails).backward({.gradient = Tensor::full({2}, 3)});
  EXPECT_EQ(grad(x).span<float>()[1], 3);
  fails = true;
  EXPECT_THROW(faulty(x, fails).backward({.gradient = Tensor::full({2}, 1)}), Error);
  EXPECT_TRUE(has_grad(x)) << "what earlier passes had added up is still there";
  EXPECT_EQ(grad(x).span<float>()[1], 3);
}

TEST(FailedGradients, FreeTheTape) {
  Net net;
  const std::size_t idle = bytes_in_use();
  const Tensor loss = net.nested();
  net.node_fails = true;
  EXPECT_EQ(message_of([&] { gradients(loss, {net.first}); }), "a node that fails");
  EXPECT_LE(bytes_in_use(), idle + kSmall);
  EXPECT_FALSE(in_backward());
}

}  // namespace
}  // namespace lockstep
