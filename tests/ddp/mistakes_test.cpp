// Common mistakes: a layer without add(), a weight changed too early, a late freeze, a module destroyed before its
// wrapper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "lockstep/core/log.h"
#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "lockstep/optim/sgd.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct HalfAddedNet : nn::Module {
  nn::Linear hidden{3, 4, {.activation = Activation::kReLU}}, out{4, 2};
  explicit HalfAddedNet(bool add_all = true) {
    if (add_all) add("hidden", hidden);
    add("out", out);
  }
  Tensor forward(const Tensor& x) override { return out(hidden(x)); }
};

std::shared_ptr<ProcessGroup> alone() { return ProcessGroup::wrap({}, make_backend("local", {})); }

Tensor loss_of(DistributedDataParallel& ddp, const Tensor& x = Tensor::full({2, 3}, 1)) {
  return nn::cross_entropy(ddp(x), Tensor::zeros({2}, DType::kInt64));
}

TEST(Mistakes, ALayerThatWasNotAddedIsNamedOnce) {
  const testing::LogLines warnings;
  HalfAddedNet net(false);
  DistributedDataParallel ddp(net, alone());
  for (int step = 0; step < 3; ++step) loss_of(ddp).backward();
  const std::string text = warnings.text();
  EXPECT_THAT(text, AllOf(HasSubstr("parameter 'weight' of shape (4, 3) (read by linear)"),
                          HasSubstr("'bias' of shape (4)"), HasSubstr("add()"), Not(HasSubstr("out."))));
  EXPECT_EQ(text.find("(4, 3)"), text.rfind("(4, 3)")) << "said more than once: " << text;
}

TEST(Mistakes, AreLoggedByRankZeroOnly) {
  const testing::LogLines warnings;
  testing::expect_all_well(testing::run_ranks(2, "shm", [&](auto group) {
    HalfAddedNet net(false);
    DistributedDataParallel ddp(net, group);
    require_grad(net.out.bias, false);
    loss_of(ddp).backward();
  }));
  EXPECT_THAT(warnings.text(),
              AllOf(HasSubstr("rank 0: backward computed"), HasSubstr("rank 0: frozen"), Not(HasSubstr("rank 1"))));
}

// Inference makes no pass that would release the inputs.
TEST(Mistakes, InputsAreNotKeptForAPassThatNeverComes) {
  int alive = 0;  // outlives the wrapper, which may keep some until it is destroyed
  HalfAddedNet net;
  DistributedDataParallel ddp(net, alone());
  const auto infer = [&] {
    ++alive;
    const Buffer memory = cpu_device().allocate(6 * sizeof(float));
    const Tensor x =
        Tensor::wrap(Buffer(memory.data(), memory.bytes(), &cpu_device(), [&alive, memory] { --alive; }), {2, 3});
    x.fill(1);
    require_grad(x);
    ddp(x);
  };
  {
    const NoGrad inference;
    infer();
    EXPECT_EQ(alive, 0);
  }
  {
    const auto local = ddp.no_sync();
    infer();
    EXPECT_EQ(alive, 0);
  }
  for (int i = 0; i < 200; ++i) infer();
  EXPECT_LT(alive, 100);
}

TEST(Mistakes, AParameterThatIsUnfrozenTooLateIsNamed) {
  const testing::LogLines warnings;
  HalfAddedNet net;
  require_grad(net.hidden.weight, false);
  DistributedDataParallel ddp(net, alone());
  require_grad(net.hidden.weight, true);
  loss_of(ddp).backward();
  EXPECT_THAT(warnings.text(), AllOf(HasSubstr("'hidden.weight'"), Not(HasSubstr("'hidden.bias'"))));
}

TEST(Mistakes, InputsAndLeavesOfOtherWrappersAreNotMistakes) {
  const testing::LogLines warnings;
  HalfAddedNet first, second;
  const Tensor x = Tensor::full({2, 3}, 1);
  require_grad(x);
  DistributedDataParallel one(first, alone()), other(second, alone());
  add(loss_of(one, x), loss_of(other, x)).backward();
  EXPECT_THAT(warnings.text(), IsEmpty());
}

TEST(Mistakes, AWeightThatChangesBetweenForwardAndBackwardIsNamed) {
  HalfAddedNet net;
  DistributedDataParallel ddp(net, alone());
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1F});
  const Tensor early = loss_of(ddp), late = loss_of(ddp);
  early.backward();
  sgd.step();
  EXPECT_THAT(
      message_of([&] { late.backward(); }),
      AllOf(HasSubstr("parameter 'out.weight' of shape (2, 4) was changed after linear read it"), HasSubstr("step()")));
  loss_of(ddp).backward();  // works again
}

TEST(Mistakes, AFrozenParameterIsNamedOnceAndByTheOptimizer) {
  const testing::LogLines warnings;
  HalfAddedNet net;
  DistributedDataParallel ddp(net, alone());
  optim::SGD sgd(ddp.parameters(), {.lr = 0.1F});
  require_grad(net.hidden.bias, false);
  for (int step = 0; step < 2; ++step) loss_of(ddp).backward();
  const std::string text = warnings.text();
  EXPECT_THAT(text, AllOf(HasSubstr("frozen after the module was wrapped"), HasSubstr("'hidden.bias'"),
                          Not(HasSubstr("did not reach"))));
  EXPECT_EQ(text.find("hidden.bias"), text.rfind("hidden.bias")) << "said more than once: " << text;
  EXPECT_THAT(message_of([&] { sgd.step(); }), HasSubstr("parameter 'hidden.bias' of shape (4) requires no gradient"));
}

TEST(Mistakes, AModuleMayGoBeforeItsWrapper) {
  auto net = std::make_unique<HalfAddedNet>();
  auto ddp = std::make_unique<DistributedDataParallel>(*net, alone());
  const Tensor loss = loss_of(*ddp);
  net.reset();
  loss.backward();  // the tape keeps its parameters alive
  EXPECT_TRUE(has_grad(ddp->parameters().front().tensor));
  EXPECT_THAT(message_of([&] {
                (*ddp)(Tensor::full({2, 3}, 1));
              }),
              AllOf(HasSubstr("'hidden.weight'"), HasSubstr("destroyed before its wrapper")));
  EXPECT_THROW(ddp->module(), InvalidArgument);
  ddp.reset();
}

TEST(Mistakes, BeginEpochInJoinIsRefused) {
  const auto failures = testing::run_ranks(2, "threads", [](std::shared_ptr<ProcessGroup> group) {
    HalfAddedNet net;
    DistributedDataParallel ddp(net, group);
    ddp.begin_epoch(2);
    ddp.join([&] { ddp.begin_epoch(1); });
  });
  EXPECT_THAT(failures, ::testing::Each(HasSubstr("begin_epoch: called in join()")));
}

// Rank 1 throws an object that is not a std::exception. The others must receive an error instead of waiting.
TEST(Mistakes, AnExceptionOfAnyTypeEndsJoinAndHooks) {
  const auto run = [](bool in_hook) {
    return testing::run_ranks(3, "threads", [in_hook](std::shared_ptr<ProcessGroup> group) {
      HalfAddedNet net;
      const bool is_odd = group->rank() == 1;
      DistributedDataParallelOptions options;
      if (in_hook)
        options.comm_hook = [is_odd](ProcessGroup& all, const GradBucket& bucket) {
          if (is_odd) throw 42;
          return all.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
        };
      DistributedDataParallel ddp(net, group, options);
      try {
        ddp.join([&] {
          if (is_odd && !in_hook) throw 42;
          loss_of(ddp).backward();
        });
      } catch (int number) {
        throw Error("a number of {}", number);
      }
    });
  };
  for (const bool in_hook : {false, true}) {
    const auto failures = run(in_hook);
    EXPECT_EQ(failures[1], "a number of 42");
    EXPECT_THAT(failures[0], HasSubstr("an exception that is not a std::exception"));
    EXPECT_THAT(failures[2], HasSubstr("an exception that is not a std::exception"));
  }
}

}  // namespace
}  // namespace lockstep
