// A loss that is NaN or infinite ends the training on all ranks.
#include "lockstep/train/check_finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/ddp/ddp.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/loss.h"
#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckFinite, GivesTheValueBack) {
  EXPECT_EQ(check_finite(Tensor::full({}, 1e30f), 1), 1e30f);
  EXPECT_EQ(check_finite(cast(Tensor::full({1}, 2), DType::kBFloat16), 1), 2);
}

TEST(CheckFinite, NamesLossStepRankAndValue) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf(""), -std::nanf("")})
    EXPECT_THAT(message_of([&] { check_finite(Tensor::full({}, bad), 412, {.name = "loss of the critic"}); }),
                AllOf(HasSubstr("step 412: Model diverged with loss of the critic = "),
                      HasSubstr(std::isnan(bad) ? "= NaN on rank 0" : fmt::format("= {} on rank 0", bad)),
                      HasSubstr("smaller learning rate")));
}

TEST(CheckFinite, RefusesInvalidTensors) {
  EXPECT_THAT(message_of([] { check_finite(Tensor(), 3); }),
              HasSubstr("check_finite: the loss of step 3 is an undefined tensor"));
  EXPECT_THROW(check_finite(Tensor::zeros({2}), 1), InvalidArgument);
  EXPECT_THROW(check_finite(Tensor::zeros({}, DType::kInt64), 1), InvalidArgument);
}

// The other ranks wait in backward's all-reduce and make no call of their own that could fail.
TEST(CheckFinite, OfOneRankEndsAllRanksWithItsText) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto failures = testing::run_ranks(3, transport, [](auto group) {
      nn::Linear net(4, 3);
      DistributedDataParallel ddp(net, group);
      const Tensor labels = Tensor::zeros({2}, DType::kInt64);
      for (std::int64_t step = 1; step <= 50; ++step) {
        const float input = step == 3 && group->rank() == 1 ? std::nanf("") : 1.0f;
        const Tensor loss = nn::cross_entropy(ddp(Tensor::full({2, 4}, input)), labels);
        if (group->rank() == 1) check_finite(loss, step, {.group = group});
        loss.backward();
      }
    });
    EXPECT_THAT(failures, ::testing::Each(HasSubstr("step 3: Model diverged with loss = NaN on rank 1"))) << transport;
    EXPECT_THAT(failures[0], HasSubstr("rank 1 aborted the group"));
    EXPECT_THAT(failures[2], HasSubstr("rank 1 aborted the group"));
  }
}

TEST(CheckFinite, OfAllRanksEndsEachWithItsOwnValue) {
  const auto failures = testing::run_ranks(2, "shm", [](auto group) {
    group->barrier();
    check_finite(Tensor::full({}, std::numeric_limits<float>::infinity()), 7, {.group = group});
  });
  for (std::size_t rank = 0; rank < failures.size(); ++rank)
    EXPECT_THAT(failures[rank], HasSubstr(fmt::format("step 7: Model diverged with loss = inf on rank {}", rank)));
}

// Through every kind of layer that takes a maximum.
TEST(CheckFinite, FailsIfAFirstLayerGivesNaN) {
  nn::Sequential net;
  net.append<nn::Conv2d>(1, 4, Size2{1, 1}, nn::Conv2dLayerOptions{.activation = Activation::kReLU});
  net.append<nn::Conv2d>(4, 4, Size2{3, 3}, nn::Conv2dLayerOptions{.padding = Same{}});
  net.append<nn::ReLU>();
  net.append<nn::MaxPool2d>(Size2{2, 2}, MaxPool2dOptions{.stride = {2, 2}});
  net.append<nn::LocalResponseNorm>();
  net.append<nn::Flatten>();
  net.append<nn::Linear>(16, 8, nn::LinearLayerOptions{.activation = Activation::kReLU});
  net.append<nn::Linear>(8, 3);
  Tensor labels = Tensor::zeros({2}, DType::kInt64);
  const Tensor good = nn::cross_entropy(net(Tensor::full({2, 4, 4, 1}, 1)), labels);
  check_finite(good, 1);
  const Tensor bad = nn::cross_entropy(net(Tensor::full({2, 4, 4, 1}, std::nanf(""))), labels);
  EXPECT_THROW(check_finite(bad, 1), Error) << bad.item();
}

}  // namespace
}  // namespace lockstep::train
