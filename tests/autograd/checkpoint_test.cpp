// Activation checkpoints compared with the same functions without them: the same gradients, fewer activations, hooks at
// the same moments, the same random numbers.
#include "lockstep/autograd/activation_checkpoint.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/autograd/normalization.h"
#include "tests/autograd/checkpoint_comparison.h"

namespace lockstep {
namespace {

TEST(Checkpoint, GivesTheSameBitsAsTheFunctionItself) {
  manual_seed(1);
  const Tensor x = random_leaf({4, 8}), first = random_leaf({8, 8}), second = random_leaf({8, 8}),
               bias = random_leaf({8});
  const auto loss_of = [&](bool in_checkpoint) {
    const Tensor scaled = scale(x, 2);
    const Tensor y = maybe(
        in_checkpoint,
        [&](const Tensor& input) {
          return linear(linear(input, first, bias, Activation::kReLU), second, bias, Activation::kReLU);
        },
        scaled);
    return weigh(linear(y, first, Tensor()));  // first is used outside as well
  };
  const std::vector<Tensor> leaves = {x, first, second, bias};
  EXPECT_EQ(results_of([&] { return loss_of(true); }, leaves), results_of([&] { return loss_of(false); }, leaves));
  check_gradients({first, second}, [&] { return loss_of(true); });
}

TEST(Checkpoint, TakesSeveralInputsUndefinedOnesAndOneTwice) {
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3), unused = scalar_leaf(4),
               count = Tensor::zeros({1}, DType::kInt64);
  const auto function = [](const std::vector<Tensor>& in) {
    EXPECT_FALSE(in[3].defined());
    EXPECT_EQ(in[4].dtype(), DType::kInt64);
    return add(add(scale(in[0], 3), scale(in[1], 5)), scale(in[2], 7));
  };
  const Tensor result = checkpoint(function, {x, y, x, Tensor(), count, unused});
  EXPECT_EQ(result.item(), 2 * 10 + 15);
  result.backward();
  EXPECT_EQ(grad(x).item(), 10);
  EXPECT_EQ(grad(y).item(), 5);
  EXPECT_FALSE(has_grad(unused));
}

TEST(Checkpoint, FindsLeavesAndResultsThatTheFunctionCaptures) {
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3), z = scalar_leaf(5);
  const Tensor middle = scale(y, 10);
  // x is an input and captured, `middle` is a captured result, z is reached only through the capture.
  const auto function = [&](const Tensor& input) { return add(add(input, scale(x, 2)), add(scale(middle, 4), z)); };
  add(checkpoint(function, x), middle).backward();
  EXPECT_EQ(grad(x).item(), 3);
  EXPECT_EQ(grad(y).item(), 50);
  EXPECT_EQ(grad(z).item(), 1);
}

TEST(Checkpoint, MayReturnAnInputOrACapturedTensor) {
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3);
  checkpoint([](const Tensor& input) { return input; }, scale(x, 5)).backward();
  EXPECT_EQ(grad(x).item(), 5);
  checkpoint([&](const Tensor&) { return y; }, x).backward();
  EXPECT_EQ(grad(y).item(), 1);
  const Tensor middle = scale(y, 7);
  checkpoint([&](const Tensor&) { return middle; }, x).backward();
  EXPECT_EQ(grad(y).item(), 8);
}

TEST(Checkpoint, CapturesResultsThatAnotherThreadRecorded) {
  const Tensor x = scalar_leaf(2), y = scalar_leaf(3);
  Tensor middle = y;
  std::thread([&] {
    for (int i = 0; i < 100; ++i) middle = scale(middle, 1);  // numbers above those of this thread
  }).join();
  add(checkpoint([&](const Tensor& input) { return add(input, middle); }, x), middle).backward();
  EXPECT_EQ(grad(y).item(), 2);
}

TEST(Checkpoint, KeepsInputsAloneBetweenForwardAndBackward) {
  constexpr std::size_t kActivation = 256 * 64 * sizeof(float);
  const Tensor weight = random_leaf({64, 64}, -0.1f, 0.1f);
  const auto block = [&](const Tensor& input) {
    Tensor y = input;
    for (int layer = 0; layer < 8; ++layer) y = linear(y, weight, Tensor());
    return y;
  };
  l2_loss(weight).backward();  // the gradient's memory
  const Tensor x = Tensor::full({256, 64}, 0.5f);
  const std::size_t idle = cpu_device().allocator_stats().bytes_in_use;
  {
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = checkpoint(block, y);
    const Tensor loss = l2_loss(std::exchange(y, Tensor()));
    EXPECT_LE(cpu_device().allocator_stats().bytes_in_use, idle + 4 * kActivation + 1024)
        << "one per checkpoint, not eight";
    std::size_t most = 0;
    const HookHandle hook =
        register_grad_hook(weight, [&](const Tensor&) { most = cpu_device().allocator_stats().bytes_in_use; });
    loss.backward();
    EXPECT_LE(most, idle + 4 * kActivation) << "at the last node of all";
  }
  EXPECT_EQ(cpu_device().allocator_stats().bytes_in_use, idle);
}

TEST(Checkpoint, KeepsNothingWhereNoGradientIsWanted) {
  const Tensor x = Tensor::full({}, 2), leaf = scalar_leaf(3);
  EXPECT_FALSE(requires_grad(checkpoint([](const Tensor& input) { return scale(input, 2); }, x)));
  EXPECT_TRUE(requires_grad(checkpoint([&](const Tensor& input) { return add(input, leaf); }, x)))
      << "the parameter requires one";
  const NoGrad no_grad;
  EXPECT_FALSE(requires_grad(checkpoint([&](const Tensor& input) { return add(input, leaf); }, x)));
}

TEST(CheckpointHooks, FireOnceAndOnlyWhenAllUsesInsideAndOutsideHaveRun) {
  const Tensor x = scalar_leaf(1), shared = scalar_leaf(1), inner = scalar_leaf(1);
  const auto block = [&](const Tensor& input) {
    // Backward runs `second` first.
    const Tensor first = add(input, shared), second = scale(add(inner, shared), 10);
    return add(first, second);
  };
  std::vector<std::string> events;
  const auto note = [&](const char* name) {
    return [&events, name](const Tensor& leaf) {
      events.push_back(std::string(name) + " " + std::to_string(int(grad(leaf).item())));
    };
  };
  const HookHandle hooks[] = {register_grad_hook(shared, note("shared")), register_grad_hook(inner, note("inner")),
                              register_grad_hook(x, note("x"))};
  const Tensor early = scale(shared, 100);  // recorded first: runs last
  const Tensor y = add(checkpoint(block, checkpoint(block, x)), early);
  add(y, scale(shared, 1000)).backward();
  EXPECT_EQ(events, (std::vector<std::string>{"inner 20", "x 1", "shared 1122"}));
}

// DistributedDataParallel reduces a bucket as soon as its gradients are final: not all of them at the checkpoint's end.
TEST(CheckpointHooks, FireInTheMiddleOfTheSecondRun) {
  std::vector<Tensor> weights;
  std::vector<HookHandle> hooks;
  std::vector<std::size_t> order, in_use;
  for (std::size_t i = 0; i < 4; ++i) {
    weights.push_back(random_leaf({64, 64}, -0.1f, 0.1f));
    hooks.push_back(register_grad_hook(weights[i], [&, i](const Tensor&) {
      order.push_back(i);
      in_use.push_back(cpu_device().allocator_stats().bytes_in_use);
    }));
  }
  const auto block = [&](const Tensor& input) {
    Tensor y = input;
    for (const Tensor& weight : weights) y = linear(y, weight, Tensor());
    return y;
  };
  const auto step = [&] { l2_loss(checkpoint(block, Tensor::full({256, 64}, 0.5f))).backward(); };
  step();  // allocates the gradients
  order.clear();
  in_use.clear();
  step();
  EXPECT_EQ(order, (std::vector<std::size_t>{3, 2, 1, 0}));
  for (std::size_t i = 1; i < in_use.size(); ++i)
    EXPECT_LT(in_use[i], in_use[i - 1]) << "the second run's activations are freed on the way, as in any backward";
}

TEST(CheckpointHooks, QueuedCallbacksAndEndHooksWaitForTheWholePass) {
  const Tensor x = scalar_leaf(1), below = scalar_leaf(1);
  std::vector<std::string> events;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) {
    EXPECT_TRUE(in_backward());
    events.push_back("x");
    queue_callback([&] { events.push_back("queued"); });
  });
  const HookHandle last = register_grad_hook(below, [&](const Tensor&) { events.push_back("below"); });
  const auto block = [&](const Tensor& input) {
    const Tensor y = add(input, x);
    register_backward_end_hook(y, [&] { events.push_back("end hook"); });
    return scale(y, 2);
  };
  checkpoint(block, scale(below, 3)).backward();
  EXPECT_EQ(events, (std::vector<std::string>{"x", "below", "end hook", "queued"}));
  ASSERT_EQ(leaves_of_backward().size(), 0u);
}

TEST(CheckpointHooks, LeavesOfThePassAreThoseInsideToo) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(1);
  std::vector<std::string> readers;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) {
    for (const LeafUse& use : leaves_of_backward())
      readers.push_back((use.leaf.is_same(inner) ? "inner by " : "x by ") + std::string(use.reader));
  });
  checkpoint([&](const Tensor& input) { return add(input, inner); }, scale(x, 2)).backward();
  EXPECT_EQ(readers, (std::vector<std::string>{"inner by checkpoint", "x by scale"}));
}

TEST(NestedCheckpoints, GiveTheSameBits) {
  manual_seed(2);
  const Tensor x = random_leaf({4, 8}), weight = random_leaf({8, 8}), bias = random_leaf({8});
  const auto loss_of = [&](bool in_checkpoint) {
    // Captured by value: the functions outlive this one.
    const auto layer = [=](const Tensor& input) {
      return randomly_scaled(linear(input, weight, bias, Activation::kReLU));
    };
    const auto pair = [=](const Tensor& input) {
      return add(maybe(in_checkpoint, layer, maybe(in_checkpoint, layer, input)), input);
    };
    const auto whole = [=](const Tensor& input) { return bias_add(maybe(in_checkpoint, pair, pair(input)), bias); };
    manual_seed(6);
    return weigh(maybe(in_checkpoint, whole, x));
  };
  int calls = 0;
  const HookHandle hook = register_grad_hook(weight, [&](const Tensor&) { ++calls; });
  const auto plain = results_of([&] { return loss_of(false); }, {x, weight, bias});
  EXPECT_EQ(results_of([&] { return loss_of(true); }, {x, weight, bias}), plain);
  EXPECT_EQ(calls, 2);
}

TEST(NestedCheckpoints, RunThreeTimes) {
  const Tensor x = scalar_leaf(1);
  int runs = 0;
  const auto inner = [&](const Tensor& input) {
    ++runs;
    return scale(input, 3);
  };
  checkpoint([&](const Tensor& input) { return checkpoint(inner, input); }, x).backward();
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(grad(x).item(), 3);
}

TEST(Checkpoint, WorksWithRetainGraphAndGradients) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(5), other = scalar_leaf(7);
  int calls = 0;
  const HookHandle hook = register_grad_hook(inner, [&](const Tensor&) { ++calls; });
  const Tensor middle = scale(x, 2);
  const auto block = [&](const Tensor& input) { return add(scale(add(input, inner), 3), scale(other, 4)); };
  const Tensor loss = scale(checkpoint([&](const Tensor& input) { return checkpoint(block, input); }, middle), 10);
  const auto found = gradients(loss, {inner, middle, x}, {.retain_graph = true});
  EXPECT_EQ(found[0].item(), 30);
  EXPECT_EQ(found[1].item(), 30);
  EXPECT_EQ(found[2].item(), 60);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(gradients(loss, {other}, {.retain_graph = true})[0].item(), 40);
  EXPECT_FALSE(has_grad(inner));
  loss.backward({.retain_graph = true});
  loss.backward();
  EXPECT_EQ(grad(inner).item(), 60);
  EXPECT_EQ(grad(x).item(), 120);
  EXPECT_EQ(calls, 2);
  EXPECT_THROW(loss.backward(), InvalidArgument);
}

TEST(Checkpoint, WritesIntoBoundGradientsAndAddsUpOverPasses) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(5);
  const Buffer slot = cpu_device().allocate(sizeof(float));
  bind_grad(inner, slot);
  const auto step = [&] {
    checkpoint([&](const Tensor& input) { return add(add(inner, inner), input); }, x).backward();
  };
  step();
  EXPECT_EQ(*reinterpret_cast<float*>(slot.data()), 2);
  step();
  EXPECT_EQ(*reinterpret_cast<float*>(slot.data()), 4);
  clear_grad(inner);
  step();
  EXPECT_EQ(*reinterpret_cast<float*>(slot.data()), 2);
}

TEST(Checkpoint, AParameterFrozenAfterForwardGetsNoGradient) {
  const Tensor x = scalar_leaf(1), inner = scalar_leaf(5);
  const Tensor loss = checkpoint([&](const Tensor& input) { return add(inner, scale(input, 3)); }, x);
  require_grad(inner, false);
  loss.backward();
  EXPECT_EQ(grad(x).item(), 3);
  require_grad(inner);
  EXPECT_FALSE(has_grad(inner));
}

TEST(Checkpoint, RunningStatisticsFollowABatchOnce) {
  manual_seed(5);
  const Tensor x = random_leaf({8, 3});
  const auto statistics = [&](bool outer, bool inner) {
    const Tensor mean = Tensor::zeros({3}), variance = Tensor::full({3}, 1);
    const auto norm = [&](const Tensor& input) { return batch_norm(input, {}, {}, mean, variance); };
    const auto block = [&](const Tensor& input) { return maybe(inner, norm, input); };
    l2_loss(maybe(outer, block, x)).backward();
    EXPECT_FALSE(recomputing());
    return std::pair(numbers(mean), numbers(variance));
  };
  const auto plain = statistics(false, false);
  EXPECT_NE(plain.first[0], 0);
  EXPECT_EQ(statistics(true, false), plain);
  EXPECT_EQ(statistics(true, true), plain) << "a checkpoint in a checkpoint";
}

}  // namespace
}  // namespace lockstep
