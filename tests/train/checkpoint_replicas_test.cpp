// Replicas whose parameters differ are not saved: all ranks throw.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/autograd/engine.h"
#include "lockstep/ddp/model_averager.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/reduce/hooks.h"
#include "lockstep/train/checkpoint.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::expect_all_well;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
namespace fs = std::filesystem;

struct Net : nn::Module {
  nn::Linear first{4, 3}, last{3, 2};
  Tensor own = Tensor::zeros({1});  // a buffer
  Net() {
    add("first", first);
    add("last", last);
    add_buffer("own", own);
  }
  Tensor forward(const Tensor& x) override { return last(first(x)); }
};

void step(DistributedDataParallel& ddp, optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  sum(ddp(Tensor::full({2, 4}, 1.F + static_cast<float>(ddp.group().rank())))).backward();
  optimizer.step();
}

TEST(CheckpointReplicas, ThatHavePartedAreRefusedOnAllRanksWithTheFirstParameterAndItsRank) {
  for (const int ranks : {2, 3})
    for (const bool names_wrapper : {true, false}) {
      const Folder folder;
      const auto failures = run_ranks(ranks, "threads", [&](auto group) {
        Net net;
        DistributedDataParallel ddp(net, group);
        optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
        CheckpointParts parts{.model = net, .optimizer = sgd, .step = 1, .group = group};
        if (names_wrapper) parts.ddp = ddp;
        step(ddp, sgd);
        save_checkpoint(folder.path(), parts);
        group->barrier();
        if (group->rank() == 1) net.first.bias.span<float>()[2] += 0.5F;  // no counter notices it
        parts.step = 2;
        const std::string refusal = message_of([&] { save_checkpoint(folder.path(), parts); });
        group->barrier();  // the group is still usable
        throw Error("{}", refusal);
      });
      EXPECT_THAT(
          failures,
          Each(AllOf(HasSubstr("save_checkpoint: the replicas differ: parameter 'first.bias' of rank 1 differs"),
                     HasSubstr("1 of 4 parameters differ"))));
      EXPECT_TRUE(fs::exists(folder.path() + "/step-00000001"));
      EXPECT_FALSE(fs::exists(folder.path() + "/step-00000002"));
    }
}

TEST(CheckpointReplicas, RankZeroMayBeTheOneThatDiffers) {
  const Folder folder;
  EXPECT_THAT(run_ranks(3, "threads",
                        [&](auto group) {
                          Net net;
                          DistributedDataParallel ddp(net, group);
                          if (group->rank() == 0) net.load_state_dict(Net().state_dict());
                          save_checkpoint(folder.path(), {.model = net, .group = group});
                        }),
              Each(HasSubstr("parameter 'first.weight' of rank 0 differs")));
}

TEST(CheckpointReplicas, BuffersAndIgnoredParametersAreNotShared) {
  const Folder folder;
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.ignored_parameters = {"first.bias"}});
    net.own.fill(static_cast<float>(group->rank()));
    net.first.bias.fill(static_cast<float>(group->rank()));
    const std::string written = save_checkpoint(folder.path(), {.model = net, .ddp = ddp, .group = group});
    EXPECT_EQ(written.empty(), group->rank() != 0);
  }));
}

TEST(CheckpointReplicas, OfLocalSgdAreRankZerosWithAWarningBetweenTwoAverages) {
  const Folder folder;
  const testing::LogLines warnings;
  std::size_t before_average = 0, after_average = 0;
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.comm_hook = hooks::no_op()});
    PeriodicModelAverager averager(ddp, {.period = 100});
    optim::SGD sgd(ddp.parameters(), {.lr = 0.125F});
    step(ddp, sgd);
    save_checkpoint(folder.path(), {.model = net, .ddp = ddp, .step = 1, .group = group});
    group->barrier();
    if (group->rank() == 0) before_average = warnings.text().size();
    averager.average_now();
    save_checkpoint(folder.path(), {.model = net, .ddp = ddp, .step = 2, .group = group});
    group->barrier();
    if (group->rank() == 0) after_average = warnings.text().size();
  }));
  EXPECT_THAT(warnings.text(), AllOf(HasSubstr("'first.weight'"), HasSubstr("average_now()")));
  EXPECT_GT(before_average, 0U);
  EXPECT_EQ(after_average, before_average);
}

TEST(CheckpointReplicas, AreNotComparedForAModelWithoutAWrapper) {
  const Folder folder;
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    Net net;
    net.first.bias.fill(static_cast<float>(group->rank()));
    save_checkpoint(folder.path(), {.model = net, .group = group});
  }));
}

}  // namespace
}  // namespace lockstep::train
