// Branches that compute at the same time: bits, hooks, draws, failures.
#include "lockstep/autograd/parallel_apply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "lockstep/autograd/activation_checkpoint.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/reductions.h"
#include "lockstep/autograd/shapes.h"
#include "lockstep/autograd/transfer.h"
#include "lockstep/autograd/variable.h"
#include "lockstep/core/error.h"
#include "lockstep/core/logical_devices.h"
#include "lockstep/tensor/random.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class ThreeCpus : public ::testing::Environment {
  void SetUp() override { Device::configure({.cpu = 3}); }
};
const auto* const kThreeCpus = ::testing::AddGlobalTestEnvironment(new ThreeCpus);

Device& cpu(std::size_t number) { return *logical_devices(DeviceKind::kCpu)[number]; }

Tensor drawn(const Shape& shape, std::uint64_t stream, Device& device = cpu(0)) {
  Philox random(5, random_stream(RandomUse::kProgram, stream));
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  for (float& value : values) value = random.normal();
  const Tensor tensor = Tensor::from<float>(values, shape).to(device);
  require_grad(tensor);
  return tensor;
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor host = tensor.to(cpu(0));
  return {host.span<float>().begin(), host.span<float>().end()};
}

// Waits until `others` threads have come here, or reports that they have not.
class Meeting {
 public:
  explicit Meeting(int threads) : awaited_(threads) {}
  void wait(const char* where) {
    --awaited_;
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (awaited_ > 0) {
      if (std::chrono::steady_clock::now() > deadline) throw Error("no other branch is in {} at this time", where);
      std::this_thread::sleep_for(100us);
    }
  }

 private:
  std::atomic<int> awaited_;
};

// Three branches that share x and a weight.
struct Model {
  Tensor x, shared;
  std::vector<Tensor> weights;
  std::vector<Device*> devices;

  explicit Model(std::vector<Device*> on) : x(drawn({4, 6}, 1)), shared(drawn({6, 6}, 2)), devices(std::move(on)) {
    for (std::size_t b = 0; b < devices.size(); ++b) weights.push_back(drawn({5, 6}, 3 + b, *devices[b]));
  }
  Tensor branch(std::size_t b) const {
    Device& device = *devices[b];
    return tanh(
        linear(dropout(linear(to_device(x, device), to_device(shared, device), {}), 0.25F, true), weights[b], {}));
  }
  Tensor loss() const {
    std::vector<Branch> branches;
    for (std::size_t b = 0; b < devices.size(); ++b) branches.push_back({[this, b] { return branch(b); }, *devices[b]});
    Tensors home;
    for (const Tensor& y : parallel_apply(branches)) home.push_back(to_device(y, cpu(0)));
    const Tensor joined = concat(home, 1);
    return mean(joined * joined) + mean(x * x);
  }
  std::vector<std::vector<float>> gradients() const {
    std::vector<std::vector<float>> all{values_of(grad(x)), values_of(grad(shared))};
    for (const Tensor& weight : weights) all.push_back(values_of(grad(weight)));
    return all;
  }
};

TEST(ParallelApply, HasTheBitsOfOneDevice) {
  std::vector<float> losses;
  std::vector<std::vector<std::vector<float>>> gradients;
  for (const auto& devices :
       {std::vector<Device*>{&cpu(0), &cpu(0), &cpu(0)}, {&cpu(0), &cpu(1), &cpu(2)}, {&cpu(1), &cpu(2), &cpu(1)}}) {
    manual_seed(9);
    const Model model(devices);
    Tensor loss = model.loss();
    loss.backward();
    losses.push_back(loss.item());
    gradients.push_back(model.gradients());
    model.loss().backward();  // draws other masks, and adds to the gradients
    EXPECT_NE(model.gradients(), gradients.back());
  }
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i], losses[0]);
    EXPECT_EQ(gradients[i], gradients[0]);
  }
}

// Without dropout they are those of a model that is written without parallel_apply.
TEST(ParallelApply, HasTheGradientsOfThePlainModel) {
  const auto gradients = [](bool parallel) {
    const Tensor x = drawn({4, 6}, 1), a = drawn({6, 6}, 2), b = drawn({6, 6}, 3), c = drawn({6, 6}, 4);
    const Tensor before = tanh(x);
    const auto branch = [&](const Tensor& weight) { return tanh(linear(before, weight, {})); };
    Tensors y;
    if (parallel)
      y = parallel_apply({{[&] { return branch(a); }, cpu(0)},
                          {[&] { return branch(b); }, cpu(1)},
                          {[&] { return branch(c); }, cpu(2)}});
    else
      y = {branch(a), branch(b), branch(c)};
    sum(concat(y, 0) * drawn({12, 6}, 7)).backward();
    return std::vector{values_of(grad(x)), values_of(grad(a)), values_of(grad(b)), values_of(grad(c))};
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(ParallelApply, BranchesComputeAtTheSameTime) {
  Meeting in_forward(3), in_backward(3);
  std::vector<HookHandle> hooks(3);
  std::vector<Branch> branches;
  const Tensor x = drawn({2, 3}, 1);
  for (std::size_t b = 0; b < 3; ++b)
    branches.push_back({[&, b] {
                          in_forward.wait("forward");
                          const Tensor y = tanh(to_device(x, cpu(b)));
                          hooks[b] = register_result_grad_hook(y, [&](const Tensor&) { in_backward.wait("backward"); });
                          return y * y;
                        },
                        cpu(b)});
  Tensor loss;
  for (const Tensor& y : parallel_apply(branches)) {
    const Tensor part = sum(to_device(y, cpu(0)));
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  EXPECT_TRUE(has_grad(x));
}

TEST(ParallelApply, HooksOfLeavesComeOnTheCallersThreadInAFixedOrder) {
  for (int round = 0; round < 20; ++round) {
    const Tensor x = drawn({2, 3}, 1);
    std::vector<Tensor> weights;
    std::vector<HookHandle> handles;
    std::vector<std::size_t> order;
    std::vector<std::uint64_t> passes;
    for (std::size_t b = 0; b < 3; ++b) {
      weights.push_back(drawn({3, 3}, 2 + b, cpu(b)));
      handles.push_back(register_grad_hook(weights[b], [&, b, caller = std::this_thread::get_id()](const Tensor& leaf) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        EXPECT_TRUE(has_grad(leaf));
        order.push_back(b);
        passes.push_back(backward_pass());
      }));
    }
    const Tensors y = parallel_apply({{[&] { return linear(to_device(x, cpu(0)), weights[0], {}); }, cpu(0)},
                                      {[&] { return linear(to_device(x, cpu(1)), weights[1], {}); }, cpu(1)},
                                      {[&] { return linear(to_device(x, cpu(2)), weights[2], {}); }, cpu(2)}});
    sum(y[0] + to_device(y[1], cpu(0)) + to_device(y[2], cpu(0))).backward();
    EXPECT_THAT(order, ElementsAre(2, 1, 0));
    EXPECT_EQ(passes[0], passes[2]) << "one pass";
  }
}

TEST(ParallelApply, ABranchThatNothingUsesLeavesNoGradient) {
  const Tensor x = drawn({2, 3}, 1), used = drawn({3, 3}, 2), unused = drawn({3, 3}, 3);
  int hooks = 0;
  const HookHandle handle = register_grad_hook(unused, [&](const Tensor&) { ++hooks; });
  const Tensors y =
      parallel_apply({{[&] { return linear(x, used, {}); }, cpu(0)}, {[&] { return linear(x, unused, {}); }, cpu(1)}});
  sum(y[0]).backward();
  EXPECT_TRUE(has_grad(used) && has_grad(x));
  EXPECT_FALSE(has_grad(unused));
  EXPECT_EQ(hooks, 0);
}

TEST(ParallelApply, TheGraphMayBeRetainedAndGradientsTaken) {
  const Model model({&cpu(0), &cpu(1), &cpu(2)});
  const Tensor loss = model.loss();
  const Tensors taken = gradients(loss, {model.x, model.weights[1]}, {.retain_graph = true});
  Tensor again = loss;
  again.backward({.retain_graph = true});
  EXPECT_EQ(values_of(taken[0]), values_of(grad(model.x)));
  EXPECT_EQ(values_of(taken[1]), values_of(grad(model.weights[1])));
  again.backward();
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_FLOAT_EQ(values_of(grad(model.weights[1]))[i], 2 * values_of(taken[1])[i]);
}

// The function runs again in backward, with the masks of its first run.
TEST(ParallelApply, InACheckpointAndACheckpointInABranch) {
  const auto gradients_of = [](bool outside, bool inside) {
    manual_seed(4);
    const Model model({&cpu(0), &cpu(1), &cpu(2)});
    const auto branch = [&](std::size_t b) {
      return inside ? checkpoint([&, b](const Tensors&) { return model.branch(b); }, Tensors{}) : model.branch(b);
    };
    const auto joined = [&](const Tensors&) {
      const Tensors y = parallel_apply({{[&] { return branch(0); }, cpu(0)},
                                        {[&] { return branch(1); }, cpu(1)},
                                        {[&] { return branch(2); }, cpu(2)}});
      return concat({y[0], to_device(y[1], cpu(0)), to_device(y[2], cpu(0))}, 1);
    };
    const Tensor y = outside ? checkpoint(joined, Tensors{}) : joined({});
    mean(y * y).backward();
    return model.gradients();
  };
  const auto plain = gradients_of(false, false);
  EXPECT_EQ(gradients_of(true, false), plain);
  EXPECT_EQ(gradients_of(false, true), plain);
  EXPECT_EQ(gradients_of(true, true), plain);
}

TEST(ParallelApply, BranchesMayBeNested) {
  const Tensor x = drawn({2, 3}, 1);
  const auto inner = [&](std::size_t first) {
    const Tensors y = parallel_apply({{[&, first] { return tanh(to_device(x, cpu(first))); }, cpu(first)},
                                      {[&] { return to_device(x, cpu(2)) * to_device(x, cpu(2)); }, cpu(2)}});
    return to_device(y[0], cpu(0)) + to_device(y[1], cpu(0));
  };
  const Tensors y = parallel_apply({{[&] { return inner(0); }, cpu(0)}, {[&] { return inner(1); }, cpu(1)}});
  sum(y[0] + y[1]).backward();
  for (std::size_t i = 0; i < 6; ++i) {
    const float v = x.span<float>()[i], t = std::tanh(v);
    EXPECT_NEAR(grad(x).span<float>()[i], 2 * (1 - t * t) + 4 * v, 1e-5F);
  }
}

// -- draws

TEST(ParallelApply, DrawsAreTheBranchsOwnAndEvaluationDrawsNothing) {
  const Tensor ones = Tensor::full({64}, 1);
  const auto masks = [&](std::size_t calls_of_first, std::size_t device) {
    manual_seed(6);
    return parallel_apply({{[&] {
                              Tensor y = ones;
                              for (std::size_t i = 0; i < calls_of_first; ++i) y = dropout(y, 0.5F, true);
                              return y;
                            },
                            cpu(0)},
                           {[&] { return dropout(to_device(ones, cpu(device)), 0.5F, true); }, cpu(device)}});
  };
  const Tensors once = masks(1, 1), thrice = masks(3, 0);
  EXPECT_EQ(values_of(once[1]), values_of(thrice[1])) << "whatever the first one draws";
  EXPECT_NE(values_of(once[0]), values_of(once[1]));
  const RandomState before = random_state();
  const NoGrad evaluating;
  parallel_apply({{[&] { return tanh(ones); }, cpu(0)}, {[&] { return tanh(ones); }, cpu(1)}});
  EXPECT_EQ(random_state(), before);
  EXPECT_NE(values_of(masks(1, 1)[0]),
            values_of(parallel_apply({{[&] { return dropout(ones, 0.5F, true); }, cpu(0)}})[0]))
      << "the next call has other streams";
}

// -- failures

TEST(ParallelApply, TheFirstBranchsErrorIsThrownAndTheNextCallWorks) {
  const Tensor x = drawn({2, 3}, 1);
  const auto fails = [](const char* text) { return [text]() -> Tensor { throw Error("{}", text); }; };
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(
        message_of([&] {
          parallel_apply({{[&] { return tanh(x); }, cpu(0)}, {fails("second"), cpu(1)}, {fails("third"), cpu(2)}});
        }),
        "second");
    std::vector<HookHandle> hooks(2);
    const auto branch = [&](std::size_t b) {
      const Tensor y = tanh(to_device(x, cpu(b)));
      if (b == 1) hooks[b] = register_result_grad_hook(y, [](const Tensor&) { throw Error("in backward"); });
      return y * y;
    };
    const Tensors y = parallel_apply({{[&] { return branch(0); }, cpu(0)}, {[&] { return branch(1); }, cpu(1)}});
    Tensor loss = sum(y[0] + to_device(y[1], cpu(0)));
    clear_grad(x);
    EXPECT_EQ(message_of([&] { loss.backward(); }), "in backward");
    EXPECT_FALSE(has_grad(x));
  }
  sum(parallel_apply({{[&] { return tanh(x); }, cpu(1)}})[0]).backward();
  EXPECT_TRUE(has_grad(x));
}

TEST(ParallelApply, AHookThatThrowsEndsThePassAfterAllBranches) {
  const Tensor weight = drawn({3, 3}, 2, cpu(1)), x = drawn({2, 3}, 1);
  const HookHandle handle = register_grad_hook(weight, [](const Tensor&) { throw Error("hook"); });
  const Tensors y = parallel_apply(
      {{[&] { return tanh(x); }, cpu(0)}, {[&] { return linear(to_device(x, cpu(1)), weight, {}); }, cpu(1)}});
  Tensor loss = sum(y[0] + to_device(y[1], cpu(0)));
  EXPECT_EQ(message_of([&] { loss.backward(); }), "hook");
}

TEST(ParallelApply, WhatIsRefused) {
  EXPECT_THAT(message_of([] { parallel_apply({}); }), HasSubstr("parallel_apply: got no branch"));
  EXPECT_THAT(message_of([] { parallel_apply({{{}, cpu(0)}}); }), HasSubstr("the function of branch 0 is empty"));
  EXPECT_THAT(message_of([] {
                parallel_apply({{[] { return Tensor(); }, cpu(1)}});
              }),
              HasSubstr("the function of branch 0 returned an undefined tensor"));
}

}  // namespace
}  // namespace lockstep
