// The state in a checkpoint that differs between ranks: random streams, and parameters that DistributedDataParallel
// ignores. Also the group of a save and a load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/ops.h"
#include "tests/ddp/ranks.h"
#include "tests/support/log_lines.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::expect_all_well;
using testing::Folder;
using ::testing::HasSubstr;
using testing::run_ranks;
namespace fs = std::filesystem;

// -- random streams

float draw() {
  const Tensor number = Tensor::empty({1});
  fill_normal(number, 0, 1);
  return number.item();
}

// Saves on `ranks` ranks, with a different seed on each or the same on all, and returns the next draw of each rank.
std::vector<float> save_random(const std::string& folder, int ranks, bool differ) {
  std::vector<float> next(static_cast<std::size_t>(ranks));
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    CheckpointTrainee run(1);
    manual_seed(differ ? 100 + static_cast<std::uint64_t>(group->rank()) : 100);
    draw();
    CheckpointParts parts = run.parts();
    parts.group = group;
    save_checkpoint(folder, parts);
    next[static_cast<std::size_t>(group->rank())] = draw();
  }));
  return next;
}

// Loads on `ranks` ranks and returns the next draw of each; `logged` gets the log of the loads.
std::vector<float> load_random(const std::string& folder, int ranks, std::string* logged = nullptr) {
  std::vector<float> next(static_cast<std::size_t>(ranks));
  const testing::LogLines log;
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    CheckpointTrainee run(2);
    CheckpointParts parts = run.parts();
    parts.group = group;
    resume_checkpoint(folder, parts);
    next[static_cast<std::size_t>(group->rank())] = draw();
  }));
  if (logged != nullptr) *logged = log.text();
  return next;
}

TEST(CheckpointRandom, EachRankContinuesItsOwnStream) {
  const Folder folder;
  const std::vector<float> would = save_random(folder.path(), 3, true);
  EXPECT_NE(would[0], would[1]);
  std::string logged;
  EXPECT_EQ(load_random(folder.path(), 3, &logged), would);
  EXPECT_EQ(logged, "");
}

TEST(CheckpointRandom, AdditionalRanksBeginFreshStreams) {
  const Folder folder;
  const std::vector<float> would = save_random(folder.path(), 2, true);
  std::string logged;
  const std::vector<float> more = load_random(folder.path(), 4, &logged);
  EXPECT_EQ(std::vector<float>(more.begin(), more.begin() + 2), would);
  for (const std::size_t fresh : {2u, 3u})
    for (std::size_t other = 0; other < fresh; ++other) EXPECT_NE(more[fresh], more[other]);
  EXPECT_EQ(load_random(folder.path(), 4), more) << "again";
  EXPECT_THAT(logged, HasSubstr("each of its 2 ranks had a random state of its own, and this job has 4: ranks from 2 "
                                "on begin fresh streams"));
  EXPECT_EQ(load_random(folder.path(), 1, &logged), std::vector<float>{would[0]});
  EXPECT_THAT(logged, HasSubstr("this job has 1: those of ranks from 1 on are not used"));
}

TEST(CheckpointRandom, AStateThatAllRanksShareFitsAnyNumberOfRanks) {
  const Folder folder;
  const float would = save_random(folder.path(), 2, false).front();
  EXPECT_FALSE(testing::read_json(folder.path() + "/step-00000007/state.json").contains("random_of_ranks"))
      << "as in versions without the list";
  std::string logged;
  EXPECT_THAT(load_random(folder.path(), 4, &logged), Each(would));
  EXPECT_EQ(logged, "");
}

// A thread that saves during the training has a random state of its own.
TEST(CheckpointRandom, TheStateOfAnotherThreadCanBeGiven) {
  const Folder folder;
  CheckpointTrainee run(1);
  manual_seed(77);
  CheckpointParts parts = run.parts();
  parts.random = random_state();
  std::thread([&] { save_checkpoint(folder.path(), parts); }).join();
  manual_seed(1);
  load_checkpoint(folder.path(), run.parts());
  EXPECT_EQ(random_state().seed, 77u);
}

// -- ignored parameters

struct OwnNet : nn::Module {
  nn::Linear a{4, 3};
  Tensor own = Tensor::zeros({3}), place = Tensor::zeros({2});
  OwnNet() {
    add("a", a);
    add_parameter("own", own);
    add_buffer("place", place);
  }
  Tensor forward(const Tensor& x) override { return a(x) + own; }
};

// `own` and `place` differ between ranks; the optimizer and the averages have the ignored parameter, too.
struct OwnTrainee {
  explicit OwnTrainee(const std::shared_ptr<ProcessGroup>& ranks, std::vector<std::string> ignored = {"own", "place"})
      : group(ranks), ddp(net, group, {.ignored_parameters = std::move(ignored)}) {}
  void become(float value) {
    net.own.fill(value), net.place.fill(value + 1);
    const auto fill = [value](const std::vector<NamedTensor>& states) {
      for (const NamedTensor& state : states)
        if (state.name.rfind("own.", 0) == 0) state.tensor.fill(value + 2);
    };
    fill(sgd.state()), fill(ema.state());
  }
  std::string hash() { return hash_of(net.state_dict()) + hash_of(sgd.state()) + hash_of(ema.state()); }
  CheckpointParts parts() { return {.model = net, .optimizer = sgd, .ema = ema, .ddp = ddp}; }

  struct Seeded {
    Seeded() { manual_seed(1); }
  };

  std::shared_ptr<ProcessGroup> group;
  Seeded seeded;  // before the net, so that all ranks have the same weights
  OwnNet net;
  DistributedDataParallel ddp;
  optim::SGD sgd{net.named_parameters(), {.lr = 0.1f, .momentum = 0.9f}};
  optim::ExponentialMovingAverage ema{net.named_parameters()};
};

void save_own(const std::string& folder, int ranks) {
  expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
    OwnTrainee run(group);
    run.become(static_cast<float>(10 * (group->rank() + 1)));
    save_checkpoint(folder, run.parts());
  }));
}

TEST(CheckpointOwn, IgnoredParametersReturnToTheirRank) {
  const Folder folder;
  for (const int ranks : {2, 3}) {
    save_own(folder.path(), ranks);
    expect_all_well(run_ranks(ranks, "threads", [&](auto group) {
      OwnTrainee loaded(group), expected(group);
      expected.become(static_cast<float>(10 * (group->rank() + 1)));
      loaded.become(1);
      load_checkpoint(folder.path(), loaded.parts());
      EXPECT_EQ(loaded.net.own.span<float>()[0], 10.f * static_cast<float>(group->rank() + 1));
      EXPECT_EQ(loaded.hash(), expected.hash()) << "rank " << group->rank();
    }));
  }
  EXPECT_TRUE(fs::exists(folder.path() + "/step-00000000/rank-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(folder.path() + "/step-00000000/rank-00001-of-00002.safetensors"))
      << "rank 0's are in the model's file";
}

TEST(CheckpointOwn, OnAnotherNumberOfRanksIsRefusedByName) {
  const Folder folder;
  save_own(folder.path(), 2);
  for (const int ranks : {1, 3}) {
    const auto failures = run_ranks(ranks, "threads", [&](auto group) {
      OwnTrainee run(group);
      run.become(5);
      const std::string before = run.hash();
      const std::string message = message_of([&] { load_checkpoint(folder.path(), run.parts()); });
      EXPECT_EQ(run.hash(), before);
      throw FileError("{}", message);
    });
    EXPECT_THAT(failures,
                Each(AllOf(HasSubstr("'own'"), HasSubstr("of each of 2 ranks"), HasSubstr("load it on 2 ranks"))));
  }
}

TEST(CheckpointOwn, WithoutTheWrapperIsRefusedOrGivesRankZerosWithAWarning) {
  const Folder folder;
  save_own(folder.path(), 2);
  const auto without = run_ranks(2, "threads", [&](auto group) {
    OwnTrainee run(group);
    CheckpointParts parts = run.parts();
    parts.ddp = {}, parts.group = group;
    load_checkpoint(folder.path(), parts);
  });
  EXPECT_THAT(without, Each(HasSubstr("give .ddp, the wrapper that ignores them")));
  const auto unlike = run_ranks(2, "threads", [&](auto group) {
    OwnTrainee run(group, {});
    load_checkpoint(folder.path(), run.parts());
  });
  EXPECT_THAT(unlike, Each(HasSubstr("this job's .ddp does not ignore them")));
  const auto fewer = run_ranks(2, "threads", [&](auto group) {
    OwnTrainee run(group, {"own"});
    load_checkpoint(folder.path(), run.parts());
  });
  EXPECT_THAT(fewer, Each(HasSubstr("'model/place' (2) does not exist here")));
  const testing::LogLines log;
  OwnNet alone;
  load_checkpoint(folder.path(), {.model = alone});
  EXPECT_EQ(alone.own.span<float>()[0], 10);
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("'own'"), HasSubstr("of each of 2 ranks: all ranks of this job get rank 0's")));
}

// A checkpoint of an older version.
TEST(CheckpointOwn, RankZerosGoToAllRanksWithAWarning) {
  const Folder folder;
  OwnNet saved;
  saved.own.fill(4);
  save_checkpoint(folder.path(), {.model = saved});
  const testing::LogLines log;
  expect_all_well(run_ranks(2, "threads", [&](auto group) {
    OwnTrainee run(group);
    load_checkpoint(folder.path(), {.model = run.net, .ddp = run.ddp});
    EXPECT_EQ(run.net.own.span<float>()[0], 4);
  }));
  EXPECT_THAT(log.text(), HasSubstr("has no rank's own but rank 0's"));
}

TEST(CheckpointOwn, OneRankWithoutTheWrapperIsNamed) {
  const Folder folder;
  const auto failures = run_ranks(2, "threads", [&](auto group) {
    OwnTrainee run(group);
    CheckpointParts parts = run.parts();
    parts.group = group;
    if (group->rank() == 1) parts.ddp = {};
    save_checkpoint(folder.path(), parts);
  });
  EXPECT_THAT(failures, Each(HasSubstr("save_checkpoint: rank 1 gave no .ddp, rank 0 a")));
  EXPECT_TRUE(folder.names().empty());
}

// -- groups

// Each half of a job of four ranks trains its own model, with a folder of its own.
TEST(CheckpointGroup, TheGroupOfTheWrapperIsUsed) {
  const Folder folder;
  const auto train = [&](const std::shared_ptr<ProcessGroup>& world, bool loads) {
    const int half = world->rank() / 2;
    const auto own = world->split(half);
    manual_seed(static_cast<std::uint64_t>(10 + half));
    nn::Linear net(4, 3);
    DistributedDataParallel ddp(net, own);
    const std::string path = folder.path() + "/" + std::to_string(half), weights = hash_of(net.state_dict());
    if (loads) {
      for (const NamedTensor& entry : net.state_dict()) entry.tensor.fill(0);
      EXPECT_EQ(resume_checkpoint(path, {.model = net, .ddp = ddp}).world_size, 2);
      EXPECT_EQ(hash_of(net.state_dict()), weights) << "half " << half;
    } else {
      EXPECT_EQ(save_checkpoint(path, {.model = net, .ddp = ddp}), own->rank() == 0 ? path + "/step-00000000" : "");
    }
  };
  for (const bool loads : {false, true}) expect_all_well(run_ranks(4, "shm", [&](auto world) { train(world, loads); }));
}

TEST(CheckpointGroup, AGroupWithOtherRanksThanTheWrapperIsRefusedOnAllRanks) {
  const Folder folder;
  for (const bool loads : {false, true})
    for (const int odd : {0, 1, 2}) {  // 2: both ranks
      const auto failures = run_ranks(2, "shm", [&](auto world) {
        const auto alone = world->split(world->rank()), again = world->split(0),
                   turned = world->split(0, -world->rank());
        nn::Linear net(4, 3);
        DistributedDataParallel ddp(net, world);
        CheckpointParts parts{.model = net, .ddp = ddp, .group = again};
        save_checkpoint(folder.path(), parts);  // another group of the same ranks
        parts.step = 1, parts.group = world;
        if (odd == world->rank() || odd == 2) parts.group = loads ? turned : alone;
        if (loads)
          load_checkpoint(folder.path(), parts);
        else
          save_checkpoint(folder.path(), parts);
      });
      EXPECT_THAT(failures, Each(AllOf(HasSubstr(fmt::format("{}: rank {}: .group has {} ranks, ",
                                                             loads ? "load_checkpoint" : "save_checkpoint",
                                                             odd == 2 ? 0 : odd, loads ? 2 : 1)),
                                       HasSubstr("leave .group out, or give the ddp's"))));
    }
}

TEST(CheckpointGroup, TheDefaultGroupIsThatOfTheProcessUnlessSeveralThreadsHaveOne) {
  const auto of_new_thread = [](const std::function<void()>& look) { std::thread(look).join(); };
  ASSERT_EQ(default_process_group(), nullptr);
  auto group = init_process_group({.device = &cpu_device()});
  of_new_thread([&] { EXPECT_EQ(default_process_group(), group); });
  std::shared_ptr<ProcessGroup> second;
  of_new_thread([&] {
    second = init_process_group({.device = &cpu_device()});
    EXPECT_EQ(default_process_group(), second);
  });
  EXPECT_EQ(default_process_group(), group);
  of_new_thread([&] {
    EXPECT_THAT(message_of([] { default_process_group(); }),
                HasSubstr("2 threads of this process have called init_process_group()"));
    nn::Linear net(2, 2);
    EXPECT_THROW(save_checkpoint("nowhere", {.model = net}), InvalidArgument);
  });
  second.reset();
  of_new_thread([&] { EXPECT_EQ(default_process_group(), group); });
  group.reset();
  of_new_thread([&] { EXPECT_EQ(default_process_group(), nullptr); });
}

TEST(CheckpointGroup, RanksAtDifferentStepsAreNamed) {
  const Folder folder;
  const auto failures = run_ranks(3, "threads", [&](auto group) {
    CheckpointTrainee run(1);
    CheckpointParts parts = run.parts(group->rank() == 2 ? 8 : 7);
    parts.group = group;
    save_checkpoint(folder.path(), parts);
  });
  EXPECT_THAT(failures, Each(HasSubstr("save_checkpoint: rank 2 is at step 8, rank 0 at 7: ")));
}

}  // namespace
}  // namespace lockstep::train
