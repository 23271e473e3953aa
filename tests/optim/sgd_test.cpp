// SGD: PyTorch's numbers, skipped parameters, state, and steps without allocations.
#include "lockstep/optim/sgd.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/variable.h"
#include "tests/optim/trainee.h"
#include "tests/support/heap_count.h"

namespace lockstep::optim {
namespace {

using test_support::heap_allocations_by_thread;

struct TorchCase {
  const char* name;
  SGDOptions options;
  std::array<float, 3> expected;
};

class AgainstTorch : public ::testing::TestWithParam<TorchCase> {};

// torch 2.15: torch.optim.SGD on [1, -2, 0.5] after the gradients below, float32. It may round in another order (fused
// multiply-adds), so the bound is one unit in the last place of 2.
TEST_P(AgainstTorch, GivesTheSameWeightsAfterThreeSteps) {
  const Tensor weight = parameter_of({1, -2, 0.5f});
  SGD sgd({{"w", weight}}, GetParam().options);
  for (const std::vector<float>& gradient :
       {std::vector<float>{0.5f, -1, 2}, std::vector<float>{-0.25f, 0.75f, 1.5f}, std::vector<float>{1, 0.125f, -3}}) {
    sgd.zero_grad();
    give_gradient(weight, gradient);
    sgd.step();
  }
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(weight.span<float>()[i], GetParam().expected[i], 2.5e-7) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Options, AgainstTorch,
    ::testing::Values(
        TorchCase{"plain", {.lr = 0.1f}, {0.87499994f, -1.98750007f, 0.450000018f}},
        TorchCase{"momentum", {.lr = 0.1f, .momentum = 0.9f}, {0.812000036f, -1.88399994f, -0.0269999672f}},
        TorchCase{
            "nesterov", {.lr = 0.1f, .momentum = 0.9f, .nesterov = true}, {0.705799997f, -1.88309991f, -0.024299968f}},
        TorchCase{"decay", {.lr = 0.1f, .weight_decay = 0.01f}, {0.872077942f, -1.98163092f, 0.449051291f}},
        TorchCase{"momentum_decay",
                  {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f},
                  {0.806559801f, -1.87309456f, -0.0288928319f}},
        TorchCase{"nesterov_decay",
                  {.lr = 0.1f, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f},
                  {0.698189199f, -1.8677882f, -0.0257178564f}}),
    [](const auto& test) { return test.param.name; });

TEST(SGD, LeavesParametersWithoutAGradientAlone) {
  const Tensor used = parameter_of({1}), unused = parameter_of({1});
  SGD sgd({{"used", used}, {"unused", unused}}, {.lr = 1, .momentum = 0.5f, .weight_decay = 0.5f});
  give_gradient(used, {0.25f});
  sgd.step();
  EXPECT_EQ(used.item(), 0.25f);
  EXPECT_EQ(unused.item(), 1);
  sgd.zero_grad();
  EXPECT_FALSE(has_grad(used));
  sgd.step();
  EXPECT_EQ(used.item(), 0.25f) << "cleared gradients count as missing";
}

TEST(SGD, ItsStateIsLiveAndHasTheParametersNames) {
  const Tensor weight = parameter_of({1, 2});
  SGD sgd({{"conv1.weight", weight}}, {.lr = 1, .momentum = 0.5f});
  const std::vector<NamedTensor> state = sgd.state();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state[0].name, "conv1.weight.momentum");
  state[0].tensor.fill(2);  // as loading a checkpoint does
  give_gradient(weight, {0, 4});
  sgd.step();
  EXPECT_EQ(weight.span<float>()[0], 0);
  EXPECT_EQ(weight.span<float>()[1], -3);
  EXPECT_EQ(state[0].tensor.span<float>()[1], 5);
  EXPECT_TRUE(SGD({{"w", weight}}, {.lr = 1}).state().empty()) << "there is no state without momentum";
}

TEST(SGD, FollowsParametersThatMoveToOtherMemory) {
  const Tensor weight = parameter_of({1});
  SGD sgd({{"w", weight}}, {.lr = 1});
  const Buffer elsewhere = cpu_device().allocate(sizeof(float));
  *reinterpret_cast<float*>(elsewhere.data()) = 8;
  weight.rebind(elsewhere);
  give_gradient(weight, {1});
  sgd.set_lr(0.5f);
  EXPECT_EQ(sgd.lr(), 0.5f);
  sgd.step();
  EXPECT_EQ(*reinterpret_cast<float*>(elsewhere.data()), 7.5f);
}

TEST(SGD, AStepAllocatesNothingAfterTheFirst) {
  const Tensor weight = parameter_of(std::vector<float>(1000, 1)), bias = parameter_of({1, 2});
  const std::size_t before_making = heap_allocations_by_thread();
  SGD sgd({{"w", weight}, {"b", bias}}, {.lr = 0.1f, .momentum = 0.9f});
  ASSERT_GT(heap_allocations_by_thread(), before_making) << "the allocation counter does not work";
  give_gradient(weight, std::vector<float>(1000, 1));
  give_gradient(bias, {1, 1});
  sgd.step();
  const AllocatorStats device_before = cpu_device().allocator_stats();
  const std::size_t heap_before = heap_allocations_by_thread();
  sgd.step();
  EXPECT_EQ(heap_allocations_by_thread(), heap_before);
  const AllocatorStats device_after = cpu_device().allocator_stats();
  EXPECT_EQ(device_after.system_allocations, device_before.system_allocations);
  EXPECT_EQ(device_after.cache_hits, device_before.cache_hits);
}

TEST(SGD, UpdatesTiedWeightsOnce) {
  const Tensor tied = parameter_of({1, 2}), other = parameter_of({4});
  SGD sgd({{"encoder", tied}, {"other", other}, {"decoder", tied}}, {.lr = 1, .momentum = 0.5f});
  give_gradient(tied, {0.25f, 0.5f});
  sgd.step();
  EXPECT_EQ(tied.span<float>()[0], 0.75f);
  EXPECT_EQ(tied.span<float>()[1], 1.5f);
  ASSERT_EQ(sgd.state().size(), 2u);
  EXPECT_EQ(sgd.state()[0].name, "encoder.momentum");
  EXPECT_EQ(sgd.state()[1].name, "other.momentum");
}

TEST(SGD, RefusesTensorsThatShareMemoryAndNamesBoth) {
  const Buffer memory = cpu_device().allocate(8 * sizeof(float));
  const auto window = [&](std::size_t first, std::int64_t count) {
    const Tensor tensor =
        Tensor::wrap(memory.window(first * sizeof(float), static_cast<std::size_t>(count) * sizeof(float)), {count});
    require_grad(tensor);
    return tensor;
  };
  const Tensor head = window(0, 4), tail = window(4, 4), middle = window(3, 2);
  EXPECT_EQ(SGD({{"tail", tail}, {"head", head}}).parameters().size(), 2u) << "adjacent tensors do not share memory";
  try {
    SGD({{"tail", tail}, {"middle", middle}, {"head", head}});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'head' (4) and 'middle' (2) share memory"), std::string::npos)
        << error.what();
  }
}

TEST(SGD, RefusesInvalidArguments) {
  const Tensor weight = parameter_of({1});
  EXPECT_THROW(SGD({}, {}), InvalidArgument);
  EXPECT_THROW(SGD({{"w", Tensor::zeros({1})}}, {}), InvalidArgument) << "the tensor does not require a gradient";
  EXPECT_THROW(SGD({{"w", weight}}, {.lr = -1}), InvalidArgument);
  EXPECT_THROW(SGD({{"w", weight}}, {.momentum = -0.1f}), InvalidArgument);
  EXPECT_THROW(SGD({{"w", weight}}, {.nesterov = true}), InvalidArgument) << "nesterov requires momentum";
}

TEST(Sgd, InvalidNumbersAreRefused) {
  const Tensor weight = parameter_of({1});
  SGD sgd({{"w", weight}}, {.lr = 0.5f});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -0.1f}) {
    EXPECT_THROW(sgd.set_lr(bad), InvalidArgument) << bad;
    EXPECT_THROW(SGD({{"w", weight}}, {.lr = bad}), InvalidArgument) << bad;
    EXPECT_THROW(SGD({{"w", weight}}, {.momentum = bad}), InvalidArgument) << bad;
    EXPECT_THROW(SGD({{"w", weight}}, {.weight_decay = bad}), InvalidArgument) << bad;
  }
  EXPECT_EQ(sgd.lr(), 0.5f) << "a failed call changes nothing";
  sgd.set_lr(0);
}

}  // namespace
}  // namespace lockstep::optim
