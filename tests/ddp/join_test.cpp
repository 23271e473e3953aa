// DistributedDataParallel::join(): ranks without data take part in the passes of the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/optim/sgd.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Join : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Join, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// Rank r has r + 1 batches; in step s the ranks with data have x = rank + 1.
TEST_P(Join, AveragesOverAllOrOverThoseWithData) {
  for (const bool over_all : {true, false})
    for (const int ranks : {2, 4})
      expect_all_well(run_ranks(ranks, GetParam(), [over_all, ranks](auto group) {
        Heads model;
        DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {in_mib(64)}});
        for (int epoch = 0; epoch < 2; ++epoch)
          ddp.join(
              [&] {
                for (int step = 0; step <= group->rank(); ++step) {
                  clear_gradients(ddp);
                  heads_loss(ddp, 12 * static_cast<float>(group->rank() + 1)).backward();
                  int sum = 0;
                  for (int rank = step; rank < ranks; ++rank) sum += 12 * (rank + 1);
                  EXPECT_EQ(gradient_of(model.heads[0]),
                            static_cast<float>(sum) / static_cast<float>(over_all ? ranks : ranks - step));
                }
              },
              {.divide_by_initial_world_size = over_all});
      }));
}

TEST_P(Join, WithWeightsIsTheMeanOfTheRemainingSamples) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    const int steps = group->rank() == 0 ? 2 : 1;
    ddp.join([&] {
      for (int step = 0; step < steps; ++step) {
        clear_gradients(ddp);
        ddp.set_weight(group->rank() == 0 ? 3 : 1);
        heads_loss(ddp, group->rank() == 0 ? 4.F : 8.F).backward();
        EXPECT_EQ(gradient_of(model.heads[0]), step == 0 ? (3 * 4 + 8) / 4.F : 4);
      }
    });
  }));
}

// A model with a buffer that counts its forwards, with momenta, and optionally with steps after the others'.
TEST_P(Join, LeavesEqualReplicasAndWithAfterStepEqualMomenta) {
  struct Counting : Heads {
    Tensor seen = Tensor::zeros({1});
    Counting() { add_buffer("seen", seen); }
    Tensor forward(const Tensor& x) override {
      if (is_training()) seen.data<float>()[0] += 1;
      return Heads::forward(x);
    }
  };
  for (const auto& [ranks, steps_along, finds] :
       {std::tuple(2, true, false), std::tuple(2, false, true), std::tuple(4, true, true), std::tuple(4, false, false),
        std::tuple(3, true, false)}) {
    const bool finds_unused = finds, steps = steps_along;  // in Clang 14 a lambda cannot capture a structured binding
    expect_all_well(run_ranks(ranks, GetParam(), [finds_unused, steps](auto group) {
      Counting model;
      if (finds_unused) model.use = {0, 2};
      DistributedDataParallel ddp(model, group, {.find_unused_parameters = finds_unused});
      optim::SGD sgd(ddp.parameters(), {.lr = 0.01F, .momentum = 0.9F});
      JoinOptions options;
      if (steps) options.after_step = [&] { sgd.step(); };
      ddp.join(
          [&] {
            for (int step = 0; step < 5 - 2 * group->rank(); ++step) {  // 5, 3, 1, 0
              sgd.zero_grad();
              heads_loss(ddp, static_cast<float>(step + group->rank())).backward();
              sgd.step();
            }
          },
          options);
      check_replicas_equal(*group, model.named_parameters(), "weights");
      if (steps) check_replicas_equal(*group, sgd.state(), "momenta");
      EXPECT_EQ(model.heads[1].item() == 1, finds_unused) << "no rank uses it";
      EXPECT_EQ(model.seen.item(), 5) << "rank 0's, which had data to the end";
    }));
  }
}

TEST_P(Join, ARankWithoutAnyDataTakesPart) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    ddp.join([&] {
      if (group->rank() == 0) return;
      clear_gradients(ddp);
      heads_loss(ddp, 4).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), 2);
    });
    check_replicas_equal(*group, model.named_parameters(), "weights");
  }));
}

TEST_P(Join, MayEndAtTheFirstRankWithoutData) {
  for (const int ranks : {2, 4}) {
    const auto failures = run_ranks(ranks, GetParam(), [](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      ddp.join(
          [&] {
            for (int step = 0; step < (group->rank() == 1 ? 1 : 3); ++step) {
              clear_gradients(ddp);
              heads_loss(ddp, 1).backward();
            }
          },
          {.throw_on_early_termination = true});
    });
    EXPECT_THAT(failures, Each(HasSubstr("step 2: rank 1 has no data left, rank 0 has")));
  }
}

TEST_P(Join, AnExceptionOfOneRankInJoinEndsTheOthers) {
  for (const bool without_data : {true, false}) {  // in its after_step or in `train`
    const auto failures = run_ranks(3, GetParam(), [without_data](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      const auto fail = [&] { throw FileError("the disk of rank 1 is full"); };
      JoinOptions options;
      options.after_step = [&] {
        if (without_data) fail();
      };
      ddp.join(
          [&] {
            for (int step = 0; step < (group->rank() == 1 ? 1 : 3); ++step) {
              clear_gradients(ddp);
              heads_loss(ddp, 1).backward();
              if (group->rank() == 1 && !without_data) fail();
            }
          },
          options);
    });
    EXPECT_THAT(failures, Each(HasSubstr("the disk of rank 1 is full")));
    EXPECT_THAT(failures[0], HasSubstr("rank 1 aborted the group"));
  }
}

TEST_P(Join, AnExceptionOfAllRanksInJoinKeepsTheGroupUsable) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
    EXPECT_THAT(message_of([&] {
                  ddp.join([&] {
                    for (int step = 0; step < (group->rank() == 1 ? 1 : 2); ++step) {
                      clear_gradients(ddp);
                      heads_loss(ddp, step == 1 ? std::numeric_limits<float>::infinity() : 1).backward();
                    }
                  });
                }),
                HasSubstr("step 2: gradients are infinite or NaN, on rank 0"));
    clear_gradients(ddp);
    heads_loss(ddp, 1).backward();
    EXPECT_EQ(gradient_of(model.heads[0]), 1);
  }));
}

// The third of four steps fails on a rank with data; rank 2 has one step.
TEST_P(Join, RanksWithoutDataFollowThoseThatCatchAnErrorOfAllRanks) {
  for (const bool by_weight : {false, true})
    expect_all_well(run_ranks(3, GetParam(), [by_weight](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
      optim::SGD sgd(ddp.parameters(), {.lr = 0.01F, .momentum = 0.9F});
      int followed = 0;
      JoinOptions options;
      options.after_step = [&] {
        ++followed;
        sgd.step();
      };
      const int steps = group->rank() == 2 ? 1 : 4;
      ddp.join(
          [&] {
            for (int step = 0; step < steps; ++step) {
              const bool is_wrong = step == 2 && group->rank() == 1;
              sgd.zero_grad();
              if (by_weight) ddp.set_weight(is_wrong ? 0 : 1);
              const auto backward = [&] { heads_loss(ddp, is_wrong && !by_weight ? INFINITY : 1).backward(); };
              if (step != 2) {
                backward();
                sgd.step();
              } else {
                EXPECT_THAT(message_of(backward),
                            HasSubstr(by_weight ? "step 3: rank 1 set the weight 0" : "step 3: gradients are inf"));
              }
            }
          },
          options);
      EXPECT_EQ(followed, group->rank() == 2 ? 2 : 0) << "steps 2 and 4";
      check_replicas_equal(*group, model.named_parameters(), "weights");
      check_replicas_equal(*group, sgd.state(), "momenta");
    }));
}

// After an error leaves `train` on rank 0, rank 1 may have data left or not.
TEST_P(Join, AnErrorOfAllRanksThatLeavesTrainOnOneEndsJoinOnAll) {
  for (const bool goes_on : {true, false})
    expect_all_well(run_ranks(3, GetParam(), [goes_on](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
      const auto pass = [&](float x) {
        clear_gradients(ddp);
        heads_loss(ddp, x).backward();
      };
      const std::string said = message_of([&] {
        ddp.join([&] {
          if (group->rank() == 2) return;
          if (group->rank() == 0) pass(INFINITY);
          EXPECT_THAT(message_of([&] { pass(1); }), HasSubstr("step 1: gradients are infinite"));
          if (goes_on) pass(1);
        });
      });
      EXPECT_THAT(said, HasSubstr(goes_on && group->rank() != 0
                                      ? "rank 0 lets the error of its last backward end join(), rank 1 begins"
                                      : "step 1: gradients are infinite"));
      pass(1);
      EXPECT_EQ(gradient_of(model.heads[0]), 1) << "the group stays usable";
    }));
}

TEST_P(Join, AnErrorOfOneRankAfterACaughtErrorOfAllRanksEndsTheGroup) {
  expect_all_well(run_ranks(3, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.on_nonfinite_gradient = OnNonfiniteGradient::kThrow});
    const auto train = [&] {
      if (group->rank() == 2) return;
      EXPECT_THROW(heads_loss(ddp, group->rank() == 0 ? INFINITY : 1.0F).backward(), Error);
      if (group->rank() == 0) throw FileError("the disk of rank 0 is gone");
      clear_gradients(ddp), heads_loss(ddp, 1).backward();
    };
    EXPECT_THAT(message_of([&] { ddp.join(train); }), HasSubstr("the disk of rank 0 is gone"));
  }));
}

TEST_P(Join, AJoinThatHasEndedOnAllRanksCannotContinue) {
  expect_all_well(run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    const auto pass = [&] {
      clear_gradients(ddp);
      heads_loss(ddp, 1).backward();
    };
    const std::string said = message_of([&] {
      ddp.join(
          [&] {
            if (group->rank() == 1) return;
            EXPECT_THAT(message_of(pass), HasSubstr("rank 1 has no data left"));
            EXPECT_THAT(message_of(pass),
                        HasSubstr("an error of step 1 has ended it on all ranks: do not catch it in `train`"));
          },
          {.throw_on_early_termination = true});
    });
    EXPECT_THAT(said, HasSubstr(group->rank() == 1 ? "rank 1 has no data left" : "has ended it on all ranks"));
    pass();
    EXPECT_EQ(gradient_of(model.heads[0]), 1) << "the group stays usable";
  }));
}

TEST_P(Join, AWeightAppliesToItsPassHoweverThatEnds) {
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.find_unused_parameters = true});
    EXPECT_THROW(ddp.join(
                     [&] {
                       for (int step = 0; step < (group->rank() == 1 ? 0 : 1); ++step) {
                         ddp.set_weight(3);
                         heads_loss(ddp, 1).backward();
                       }
                     },
                     {.throw_on_early_termination = true}),
                 Error);
    clear_gradients(ddp);
    heads_loss(ddp, 1).backward();  // on both without weights
  });
  EXPECT_THAT(failures, Each(""));
}

TEST_P(Join, RefusesOptionsThatDifferAndStaticGraphs) {
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    ddp.join([] {}, {.divide_by_initial_world_size = group->rank() == 0});
  });
  EXPECT_THAT(failures, Each(HasSubstr("rank 1 has divide_by_initial_world_size false")));
  const auto refused = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.static_graph = true});
    ddp.join([] {});
  });
  EXPECT_THAT(refused, Each(HasSubstr("not with static_graph")));
}

}  // namespace
}  // namespace lockstep::testing
