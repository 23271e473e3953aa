// The tape: when hooks run, what accumulates, what is freed, and errors.
#include "lockstep/autograd/engine.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/autograd/gradient_check.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

Tensor leaf_of(float value) {
  const Tensor leaf = Tensor::full({}, value);
  require_grad(leaf);
  return leaf;
}

TEST(Engine, GradientsAddUpUntilTheyAreCleared) {
  const Tensor x = leaf_of(2);
  scale(x, 3).backward();
  EXPECT_EQ(grad(x).item(), 3);
  scale(x, 4).backward();
  EXPECT_EQ(grad(x).item(), 7);
  clear_grad(x);
  EXPECT_FALSE(has_grad(x));
  scale(x, 5).backward();
  EXPECT_EQ(grad(x).item(), 5);
}

TEST(Engine, GradientsAreWrittenStraightIntoTheBoundMemory) {
  const Tensor x = leaf_of(2);
  scale(x, 3).backward();
  const Tensor before = grad(x);
  const Buffer slot = cpu_device().allocate(4);
  bind_grad(x, slot);
  EXPECT_EQ(*reinterpret_cast<float*>(slot.data()), 3) << "the value moves along";
  scale(x, 1).backward();
  EXPECT_EQ(*reinterpret_cast<float*>(slot.data()), 4);
  EXPECT_EQ(before.item(), 4) << "handles follow";
}

TEST(Engine, HooksFireInOrderOnceWhenTheGradientIsFinal) {
  const Tensor x = leaf_of(2), y = leaf_of(3);
  std::vector<std::string> events;
  const HookHandle first = register_grad_hook(
      x, [&](const Tensor& leaf) { events.push_back("x " + std::to_string(int(grad(leaf).item()))); });
  const HookHandle second = register_grad_hook(x, [&](const Tensor&) { events.push_back("x again"); });
  const HookHandle third = register_grad_hook(y, [&](const Tensor&) {
    EXPECT_TRUE(in_backward());
    queue_callback([&] { events.push_back("end"); });
    events.push_back("y");
  });
  // y is used last, and x twice: y's gradient is final first, x's only after both uses.
  const Tensor first_use = scale(x, 1), second_use = scale(x, 10), last_use = scale(y, 1);
  add(add(first_use, second_use), last_use).backward();
  EXPECT_EQ(events, (std::vector<std::string>{"y", "x 11", "x again", "end"}));
  EXPECT_FALSE(in_backward());
}

TEST(Engine, HooksCanBeRemovedAlsoFromWithin) {
  const Tensor x = leaf_of(1);
  int calls = 0;
  HookHandle self;
  self = register_grad_hook(x, [&](const Tensor&) {
    ++calls;
    self.remove();
  });
  {
    const HookHandle scoped = register_grad_hook(x, [&](const Tensor&) { calls += 10; });
    scale(x, 1).backward();
    EXPECT_EQ(calls, 11);
  }
  scale(x, 1).backward();
  EXPECT_EQ(calls, 11);
}

TEST(Engine, PassesThroughAResultAreToldEvenWithoutALeafOfInterest) {
  const Tensor x = leaf_of(1), y = leaf_of(1);
  int calls = 0;
  const Tensor wrapped = scale(x, 2);
  register_backward_end_hook(wrapped, [&] { ++calls; });
  scale(y, 1).backward();
  EXPECT_EQ(calls, 0);
  scale(wrapped, 1).backward();
  EXPECT_EQ(calls, 1);
}

TEST(Engine, AnExceptionLeavesTheNextPassUntouched) {
  const Tensor x = leaf_of(1), y = leaf_of(1);
  bool broken = true;
  int ends = 0;
  const HookHandle hook = register_grad_hook(y, [&](const Tensor&) {
    queue_callback([&] { ++ends; });
    if (broken) throw Error("a hook that fails");
  });
  EXPECT_THROW(add(scale(x, 1), scale(y, 1)).backward(), Error);
  EXPECT_FALSE(in_backward());
  EXPECT_EQ(ends, 0);
  broken = false;
  clear_grad(x);
  clear_grad(y);
  add(scale(x, 2), scale(y, 3)).backward();
  EXPECT_EQ(grad(x).item(), 2);
  EXPECT_EQ(grad(y).item(), 3);
  EXPECT_EQ(ends, 1);
}

TEST(Engine, RefusesWhatCannotBeDifferentiated) {
  const Tensor x = leaf_of(1);
  const Tensor loss = scale(x, 2);
  loss.backward();
  EXPECT_THROW(loss.backward(), InvalidArgument) << "the tape is gone";
  EXPECT_THROW(scale(loss, 2).backward(), InvalidArgument) << "part of the tape is gone";
  EXPECT_THROW(reshape(scale(Tensor::full({2}, 1), 1), {2}).backward(), InvalidArgument) << "no leaf";
  const Tensor wide = Tensor::full({2}, 1);
  require_grad(wide);
  EXPECT_THROW(scale(wide, 1).backward(), InvalidArgument) << "no scalar";
  EXPECT_THROW(queue_callback([] {}), InvalidArgument);
  EXPECT_THROW(grad(Tensor::full({}, 1)), InvalidArgument);
  const HookHandle nested = register_grad_hook(x, [&](const Tensor&) { scale(x, 1).backward(); });
  EXPECT_THROW(scale(x, 1).backward(), InvalidArgument);
}

TEST(Engine, AFailedPassOverAHalfFreedTapeLeavesItsLeavesUsable) {
  const Tensor x = leaf_of(1), y = leaf_of(1);
  const Tensor freed = scale(x, 2);
  freed.backward();
  EXPECT_THROW(add(scale(y, 1), scale(freed, 1)).backward(), InvalidArgument);
  int calls = 0;
  const HookHandle hook = register_grad_hook(y, [&](const Tensor&) { ++calls; });
  scale(y, 1).backward();
  EXPECT_EQ(calls, 1);
}

TEST(Engine, NoGradRecordsNothing) {
  const Tensor x = leaf_of(1);
  {
    const NoGrad no_grad;
    EXPECT_FALSE(requires_grad(scale(x, 2)));
    const NoGrad nested;
  }
  EXPECT_FALSE(NoGrad::active());
  EXPECT_TRUE(requires_grad(scale(x, 2)));
}

TEST(Engine, DeepTapesNeedNoStack) {
  constexpr int kDepth = 30'000;
  const Tensor x = leaf_of(1);
  const auto chain = [&] {
    Tensor y = x;
    for (int i = 0; i < kDepth; ++i) y = scale(y, 1);
    return y;
  };
  chain().backward();
  EXPECT_EQ(grad(x).item(), 1);
  { const Tensor dropped_without_backward = chain(); }
}

TEST(Engine, MemoryComesBackWhileBackwardRunsAndStepsAskTheSystemForNothing) {
  const Tensor x = Tensor::full({256, 64}, 0.5f), weight = random_leaf({64, 64}, -0.1f, 0.1f);
  const auto step = [&] {
    Tensor y = x;
    for (int layer = 0; layer < 10; ++layer) y = linear(y, weight, Tensor(), Activation::kReLU);
    const Tensor loss = l2_loss(y);
    y = Tensor();
    const std::size_t recorded = cpu_device().allocator_stats().bytes_in_use;
    std::size_t at_end = 0;
    register_backward_end_hook(loss, [&] { at_end = cpu_device().allocator_stats().bytes_in_use; });
    loss.backward();
    EXPECT_LT(at_end + 9 * 256 * 64 * 4, recorded) << "activations are freed as backward proceeds";
  };
  step();
  step();
  const auto before = cpu_device().allocator_stats();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(cpu_device().allocator_stats().system_allocations, before.system_allocations);
  EXPECT_EQ(cpu_device().allocator_stats().bytes_in_use, before.bytes_in_use);
}

TEST(Engine, EachNodeFreesItsActivationsBeforeTheNextRuns) {
  constexpr int kLayers = 8;
  constexpr std::size_t kActivation = 256 * 64 * sizeof(float);
  const Tensor x = Tensor::full({256, 64}, 0.5f);
  std::vector<Tensor> weights;
  std::vector<HookHandle> hooks;
  std::vector<std::size_t> in_use;
  for (int layer = 0; layer < kLayers; ++layer) {
    weights.push_back(random_leaf({64, 64}, -0.1f, 0.1f));
    hooks.push_back(register_grad_hook(
        weights.back(), [&](const Tensor&) { in_use.push_back(cpu_device().allocator_stats().bytes_in_use); }));
  }
  const auto step = [&] {
    in_use.clear();
    Tensor y = x;
    for (const Tensor& weight : weights) y = linear(y, weight, Tensor());
    const Tensor loss = l2_loss(std::exchange(y, Tensor()));
    loss.backward();
  };
  step();  // allocates the weights' gradients
  const std::size_t idle = cpu_device().allocator_stats().bytes_in_use;
  step();
  ASSERT_EQ(in_use.size(), static_cast<std::size_t>(kLayers));
  // The memory that is left when the gradient of layer k is final: the loss, the activations below k, and the gradient
  // of its input.
  for (int k = 1; k < kLayers; ++k)
    EXPECT_EQ(in_use[k - 1] - in_use[k], k + 1 < kLayers ? kActivation : 2 * kActivation) << "layer " << k;
  EXPECT_LE(in_use.front(), idle + kLayers * kActivation + 1024);
  EXPECT_EQ(cpu_device().allocator_stats().bytes_in_use, idle);
}

TEST(Engine, PoolingsWinnersAreFreedWithTheRest) {
  const Tensor x = random_leaf({16, 16, 16, 8});
  const auto step = [&] {
    const std::size_t idle = cpu_device().allocator_stats().bytes_in_use;
    Tensor y = x;
    for (int layer = 0; layer < 6; ++layer) y = max_pool2d(y, {3, 3}, {.stride = {1, 1}, .padding = Same{}});
    const Tensor loss = l2_loss(std::exchange(y, Tensor()));
    std::size_t at_end = 0;
    register_backward_end_hook(loss, [&] { at_end = cpu_device().allocator_stats().bytes_in_use; });
    loss.backward();
    return at_end - idle;
  };
  step();  // allocates x's gradient
  EXPECT_LE(step(), 1024u) << "only the loss itself is left";
}

TEST(Engine, ATapeOfSeveralThreadsRunsInTopologicalOrder) {
  const Tensor x = leaf_of(1);
  Tensor y = x;
  for (int i = 0; i < 100; ++i) y = scale(y, 1);
  std::thread([&] { y = add(scale(y, 2), y); }).join();  // this thread's own count starts at 0
  y = scale(y, 5);
  y.backward();
  EXPECT_EQ(grad(x).item(), 15);
}

TEST(Engine, HooksMayRemoveOthersAndAddSomeForTheNextPass) {
  const Tensor x = leaf_of(1);
  std::vector<std::string> events;
  HookHandle second, added;
  const HookHandle first = register_grad_hook(x, [&](const Tensor&) {
    events.push_back("first");
    second.remove();
    if (events.size() == 1) added = register_grad_hook(x, [&](const Tensor&) { events.push_back("added"); });
  });
  second = register_grad_hook(x, [&](const Tensor&) { events.push_back("second"); });
  scale(x, 1).backward();
  EXPECT_EQ(events, std::vector<std::string>{"first"});
  scale(x, 1).backward();
  EXPECT_EQ(events, (std::vector<std::string>{"first", "first", "added"}));
}

TEST(Engine, AHandleMayOutliveItsLeaf) {
  HookHandle handle;
  {
    const Tensor x = leaf_of(1);
    handle = register_grad_hook(x, [](const Tensor&) {});
  }
  handle.remove();
}

TEST(Engine, EndCallbacksOfThePathComeBeforeThoseOfTheHooks) {
  const Tensor x = leaf_of(1);
  std::vector<std::string> events;
  const HookHandle hook = register_grad_hook(x, [&](const Tensor&) {
    queue_callback([&] {
      events.push_back("queued");
      queue_callback([&] { events.push_back("queued at the end"); });
    });
  });
  const Tensor result = scale(x, 2);
  register_backward_end_hook(result, [&] { events.push_back("through"); });
  scale(result, 1).backward();
  EXPECT_EQ(events, (std::vector<std::string>{"through", "queued", "queued at the end"}));
}

TEST(Engine, AnExceptionAtTheEndDropsTheRestAndNothingElse) {
  const Tensor x = leaf_of(1);
  int calls = 0;
  const Tensor result = scale(x, 2);
  register_backward_end_hook(result, [] { throw Error("an end that fails"); });
  register_backward_end_hook(result, [&] { ++calls; });
  EXPECT_THROW(result.backward(), Error);
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(in_backward());
  scale(x, 3).backward();
  EXPECT_EQ(grad(x).item(), 5) << "the failed pass had written its gradient";
}

TEST(Engine, BindingTheSlotThatIsBoundAlreadyKeepsTheValue) {
  const Tensor x = leaf_of(2);
  const Buffer slot = cpu_device().allocate(sizeof(float));
  bind_grad(x, slot);
  scale(x, 3).backward();
  bind_grad(x, slot);
  EXPECT_EQ(grad(x).item(), 3);
  EXPECT_TRUE(has_grad(x));
}

TEST(Engine, SumsOfIntermediateResultsDoNotShareTheirGradients) {
  const Tensor x = leaf_of(-1), y = leaf_of(2);
  // ReLU masks its gradient in place: add's other input must not be affected.
  add(relu(scale(x, 1)), scale(y, 1)).backward();
  EXPECT_EQ(grad(x).item(), 0);
  EXPECT_EQ(grad(y).item(), 1);
  clear_grad(y);
  const Tensor middle = scale(y, 1);
  add(middle, relu(middle)).backward();
  EXPECT_EQ(grad(y).item(), 2);
}

TEST(Engine, TheFirstLayersDataGradientIsNotAskedFor) {
  const Tensor x = Tensor::full({2, 3}, 1), weight = random_leaf({4, 3});
  l2_loss(linear(x, weight, Tensor())).backward();
  EXPECT_TRUE(has_grad(weight));
  EXPECT_FALSE(requires_grad(x));
}

// Only values that backward reads matter: a weight that is changed too early is harmless if nothing below it requires a
// gradient.
TEST(Engine, ValuesThatChangedSinceForwardAreRefusedWhereBackwardReadsThem) {
  const Tensor weight = Tensor::full({1, 1}, 2), x = Tensor::full({1, 1}, 5);
  require_grad(weight);
  const auto message = [](const Tensor& loss) { return message_of([&] { reshape(loss, {}).backward(); }); };
  const Tensor unread = linear(x, weight, Tensor());
  weight.fill(3);
  EXPECT_EQ(message(unread), "nothing was thrown");
  EXPECT_EQ(grad(weight).item(), 5);

  const Tensor below = linear(linear(x, weight, Tensor()), weight, Tensor());
  weight.copy_from(Tensor::full({1, 1}, 4));
  EXPECT_NE(message(below).find("a tensor of shape (1, 1) was changed after linear read it"), std::string::npos)
      << message(below);
  const Tensor norm = l2_loss(weight);
  set_name(weight, "w");
  weight.mark_changed();
  EXPECT_NE(message(norm).find("parameter 'w' of shape (1, 1) was changed after l2_loss read it"), std::string::npos);
  const Tensor of_input = linear(x, weight, Tensor());
  x.fill(6);
  EXPECT_NE(message(of_input).find("was changed after linear read it"), std::string::npos);
}

TEST(Engine, AChangeThroughAViewIsAChange) {
  const Tensor weight = Tensor::full({1, 4}, 2), x = Tensor::full({1, 2, 2, 1}, 5);
  require_grad(weight);
  const auto message = [](const Tensor& loss) { return message_of([&] { reshape(loss, {}).backward(); }); };
  const Tensor of_flat = linear(flatten(x), weight, Tensor());
  x.copy_from(Tensor::full({1, 2, 2, 1}, 6));
  EXPECT_NE(message(of_flat).find("was changed after linear read it"), std::string::npos) << message(of_flat);

  const Tensor of_whole = linear(flatten(x), weight, Tensor());
  EXPECT_EQ(message(of_whole), "nothing was thrown");
  const Tensor hidden = random_leaf({1, 1}), y = relu(hidden), reader = scale(y, 2);
  y.fill(0);
  EXPECT_NE(message(reader).find("was changed after relu read it"), std::string::npos)
      << message(reader) << ": relu saves its own result";
}

TEST(Engine, NewRandomValuesAreAChange) {
  const Tensor weight = random_leaf({1, 2});
  for (const auto& fill :
       {+[](const Tensor& x) { fill_uniform(x, -1, 1); }, +[](const Tensor& x) { fill_normal(x, 0, 1); },
        +[](const Tensor& x) { fill_truncated_normal(x, 0, 1); }}) {
    const Tensor loss = l2_loss(weight);
    fill(weight);
    EXPECT_NE(message_of([&] { loss.backward(); }).find("was changed after l2_loss read it"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
