// Modules with several inputs and outputs in DistributedDataParallel: a pass through any of the outputs reduces once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::expect_all_well;
using ::testing::HasSubstr;
using testing::run_ranks;

Tensor one(float value) { return Tensor::full({1, 1}, value); }
float gradient_of(const Tensor& leaf) { return grad(leaf).item(); }

// Returns x * trunk * left and y * trunk * right, with all weights 1.
struct Fork : nn::Module {
  Tensor trunk = one(1), left = one(1), right = one(1);
  Fork() {
    add_parameter("trunk", trunk);
    add_parameter("left", left);
    add_parameter("right", right);
  }
  Tensors forward_all(const Tensors& inputs) override {
    check_inputs(inputs, 2);
    const Tensor none;
    return {linear(linear(inputs[0], trunk, none), left, none), linear(linear(inputs[1], trunk, none), right, none)};
  }
  std::string kind() const override { return "Fork"; }
};

struct JoinedFork : Fork {
  Tensors forward_all(const Tensors& inputs) override {
    const Tensors both = Fork::forward_all(inputs);
    return {both[0] + both[1]};
  }
};

Tensor loss_of(const Tensor& output) { return reshape(output, {}); }

class Counting {  // counts a wrapper's reductions: the hook runs once per bucket
 public:
  CommHook hook() {
    return [this](ProcessGroup& group, const GradBucket& bucket) {
      ++buckets_;
      return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg,
                                    {.purpose = {"bucket", bucket.index}});
    };
  }
  int buckets() const { return buckets_; }

 private:
  int buckets_ = 0;
};

class Outputs : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Outputs, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Outputs, BothInOneLossReduceOnce) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Fork model;
    Counting counting;
    DistributedDataParallel ddp(model, group, {.comm_hook = counting.hook()});
    ASSERT_EQ(ddp.reducer().buckets().size(), 1u);
    const float x = group->rank() == 0 ? 1.F : 3.F, y = 8 * x;
    for (int pass = 1; pass <= 3; ++pass) {
      for (const Tensor& weight : model.parameters()) clear_grad(weight);
      const Tensors outputs = ddp(Tensors{one(x), one(y)});
      ASSERT_EQ(outputs.size(), 2u);
      loss_of(outputs[0] + outputs[1]).backward();
      EXPECT_EQ(counting.buckets(), pass) << "one reduction per pass, although both outputs end it";
      EXPECT_EQ(gradient_of(model.left), 2);
      EXPECT_EQ(gradient_of(model.right), 16);
      EXPECT_EQ(gradient_of(model.trunk), 18);
    }
  }));
}

TEST_P(Outputs, OneOfThemInTheLossLeavesTheOthersWeightsWithoutGradient) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Fork model;
    Counting counting;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true, .comm_hook = counting.hook()});
    const float x = group->rank() == 0 ? 1.F : 3.F;
    const Tensors outputs = ddp(Tensors{one(x), one(8 * x)});
    loss_of(outputs[1]).backward();
    EXPECT_EQ(counting.buckets(), 1);
    EXPECT_EQ(gradient_of(model.right), 16);
    EXPECT_EQ(gradient_of(model.trunk), 16);
    EXPECT_FALSE(has_grad(model.left)) << "no rank's loss reaches it";
  }));
}

TEST_P(Outputs, EachRankMayUseAnother) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Fork model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    const Tensors outputs = ddp(Tensors{one(2), one(6)});
    loss_of(outputs[static_cast<std::size_t>(group->rank())]).backward();
    EXPECT_EQ(gradient_of(model.left), 1) << "2 on rank 0, 0 on rank 1";
    EXPECT_EQ(gradient_of(model.right), 3);
    EXPECT_EQ(gradient_of(model.trunk), 4);
  }));
}

TEST_P(Outputs, ALossOfEachIsAPassOfEach) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Fork model;
    Counting counting;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true, .comm_hook = counting.hook()});
    const float x = group->rank() == 0 ? 1.F : 3.F;
    const Tensors outputs = ddp(Tensors{one(x), one(8 * x)});
    loss_of(outputs[0]).backward();
    EXPECT_EQ(gradient_of(model.trunk), 2);
    loss_of(outputs[1]).backward();
    EXPECT_EQ(counting.buckets(), 2);
    EXPECT_EQ(gradient_of(model.trunk), 18) << "averages accumulate";
    EXPECT_EQ(gradient_of(model.left), 2);
    EXPECT_EQ(gradient_of(model.right), 16);
  }));
}

// Both losses are above the trunk's single node, which ends both passes.
TEST_P(Outputs, APassOfEachOverASharedTapeReducesOnceEach) {
  struct Shared : Fork {
    Tensors forward_all(const Tensors& inputs) override {
      const Tensor hidden = linear(inputs[0], trunk, Tensor());
      return {linear(hidden, left, Tensor()), linear(hidden, right, Tensor()), hidden};
    }
  };
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Shared model;
    Counting counting;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true, .comm_hook = counting.hook()});
    const Tensors outputs = ddp(Tensors{one(group->rank() == 0 ? 1.F : 3.F)});
    loss_of(outputs[0]).backward({.retain_graph = true});
    EXPECT_EQ(counting.buckets(), 1);
    EXPECT_EQ(gradient_of(model.trunk), 2);
    loss_of(outputs[1]).backward();
    EXPECT_EQ(counting.buckets(), 2);
    EXPECT_EQ(gradient_of(model.trunk), 4);
    EXPECT_EQ(gradient_of(model.left), 2);
    EXPECT_EQ(gradient_of(model.right), 2);
  }));
}

TEST_P(Outputs, SeveralInputsGiveOneOutput) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    JoinedFork model;
    DistributedDataParallel ddp(model, group);
    const float x = group->rank() == 0 ? 1.F : 3.F;
    loss_of(ddp(one(x), one(8 * x))).backward();
    EXPECT_EQ(gradient_of(model.trunk), 18);
  }));
}

TEST(OutputsAlone, WrongNumbersAreRefused) {
  const auto group = ProcessGroup::wrap({}, make_backend("local", {}));
  Fork fork;
  DistributedDataParallel ddp(fork, group);
  EXPECT_THAT(message_of([&] { ddp(one(1)); }), AllOf(HasSubstr("Fork"), HasSubstr("1 inputs, expected 2")));
  EXPECT_THAT(message_of([&] { ddp(one(1), one(1)); }),
              AllOf(HasSubstr("Fork"), HasSubstr("2 outputs, expected 1"), HasSubstr("Tensors")));
  EXPECT_THAT(message_of([&] { ddp(one(1), one(1), one(1)); }), HasSubstr("3 inputs, expected 2"));
}

TEST(OutputsAlone, UndefinedOutputsArePassedOn) {
  struct Half : Fork {
    Tensors forward_all(const Tensors& inputs) override { return {Fork::forward_all(inputs)[0], Tensor()}; }
  };
  Half model;
  DistributedDataParallel ddp(model, ProcessGroup::wrap({}, make_backend("local", {})),
                              {.find_unused_parameters = true});
  const Tensors outputs = ddp(Tensors{one(5), one(1)});
  EXPECT_FALSE(outputs[1].defined());
  loss_of(outputs[0]).backward();
  EXPECT_EQ(gradient_of(model.left), 5);
}

}  // namespace
}  // namespace lockstep
