// Unequal shares in the mean: weights by samples, ranks without data in join(), and epochs of unequal length.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/tensor/random.h"
#include "tests/ddp/heads.h"
#include "tests/ddp/ranks.h"
#include "tests/support/in_mib.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class Shares : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wire, Shares, ::testing::Values("threads", "shm", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

// 5 samples on rank 0, one on each other: the sum of all samples' gradients is a power of two, and so is their number.
TEST_P(Shares, AMeanByWeightsIsTheMeanOfAllSamples) {
  expect_all_well(run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group, {.bucket_cap_mb = {in_mib(64)}});
    const bool is_large = group->rank() == 0;
    for (int step = 0; step < 2; ++step) {
      clear_gradients(ddp);
      ddp.set_weight(is_large ? 5 : 1);
      EXPECT_TRUE(ddp.has_weight());
      heads_loss(ddp, is_large ? 2.F : 10.F).backward();
      EXPECT_FALSE(ddp.has_weight());
      for (const Tensor& head : model.heads) EXPECT_EQ(gradient_of(head), (5 * 2 + 3 * 10) / 8.F);
      EXPECT_EQ(gradient_of(model.trunk), 3 * (5 * 2 + 3 * 10) / 8.F);
      clear_gradients(ddp);
      heads_loss(ddp, is_large ? 2.F : 10.F).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), (2 + 3 * 10) / 4.F) << "for one pass";
    }
  }));
}

TEST_P(Shares, EqualWeightsHaveTheBitsOfThePlainMean) {
  expect_all_well(run_ranks(3, GetParam(), [](auto group) {
    Heads model(16);
    DistributedDataParallel ddp(model, group);
    Philox random(5, static_cast<std::uint64_t>(group->rank()));
    for (const double weight : {1.0, 0.1, 3.0, 1e-300, 1e300}) {
      const float x = random.normal();
      std::vector<float> plain;
      clear_gradients(ddp);
      heads_loss(ddp, x).backward();
      for (const NamedTensor& parameter : ddp.parameters()) plain.push_back(gradient_of(parameter.tensor));
      clear_gradients(ddp);
      ddp.set_weight(weight);
      heads_loss(ddp, x).backward();
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_EQ(gradient_of(ddp.parameters()[i].tensor), plain[i]) << weight;
    }
  }));
}

TEST_P(Shares, AWeightThatIsNoneIsAnErrorOnAllRanksAndTheGroupGoesOn) {
  for (const double wrong : {0.0, -3.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_all_well(run_ranks(4, GetParam(), [wrong](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      ddp.set_weight(group->rank() == 2 ? wrong : 8);
      EXPECT_THAT(message_of([&] { heads_loss(ddp, 1).backward(); }),
                  HasSubstr(fmt::format("step 1: rank 2 set the weight {}, expected the number of its samples, above 0",
                                        wrong)));
      clear_gradients(ddp);
      heads_loss(ddp, 1).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), 1);
    }));
  }
}

// Their sum is no float64 any more; a quarter of a rank's weight is.
TEST_P(Shares, WeightsWhoseSumOverflowsCount) {
  for (const double unit : {5e307, 1e-300, 5e-324})
    expect_all_well(run_ranks(2, GetParam(), [unit](auto group) {
      Heads model;
      DistributedDataParallel ddp(model, group);
      ddp.set_weight(group->rank() == 0 ? 3 * unit : unit);
      heads_loss(ddp, group->rank() == 0 ? 2.F : 10.F).backward();
      EXPECT_EQ(gradient_of(model.heads[0]), (3 * 2 + 10) / 4.F) << unit;
    }));
}

TEST_P(Shares, AWeightOnOneRankOnlyIsAnErrorOnAllRanks) {
  const auto failures = run_ranks(2, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 1) ddp.set_weight(3);
    heads_loss(ddp, 1).backward();
  });
  EXPECT_THAT(failures, Each(AllOf(HasSubstr("the ranks make different calls"), HasSubstr("weights"))));
}

// Rank r has r + 1 batches; in step s those with data have x = rank + 1.
TEST_P(Shares, JoinAveragesOverAllOrOverThoseWithData) {
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

TEST_P(Shares, JoinWithWeightsIsTheMeanOfTheSamplesThatThereAre) {
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

// A model with a buffer that counts its forwards, momenta, and steps after the others' too.
TEST_P(Shares, JoinLeavesEqualReplicasAndWithAfterStepEqualMomenta) {
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
    const bool finds_unused = finds, steps = steps_along;  // a lambda takes no structured binding in Clang 14
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
      EXPECT_EQ(model.heads[1].item() == 1, finds_unused) << "in use by none";
      EXPECT_EQ(model.seen.item(), 5) << "of rank 0, which had data to the end";
    }));
  }
}

TEST_P(Shares, ARankWithoutAnyDataTakesPart) {
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

TEST_P(Shares, JoinMayEndAtTheFirstRankWithoutData) {
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

TEST_P(Shares, AnExceptionOfOneRankInJoinEndsTheOthers) {
  for (const bool without_data : {true, false}) {  // in its after_step, or in `train`
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

TEST_P(Shares, AnExceptionOfAllRanksInJoinLeavesThemTheGroup) {
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
                HasSubstr("step 2: gradients are infinite or no number, on rank 0"));
    clear_gradients(ddp);
    heads_loss(ddp, 1).backward();
    EXPECT_EQ(gradient_of(model.heads[0]), 1);
  }));
}

// The third of four steps goes wrong, on a rank with data; rank 2 has one step.
TEST_P(Shares, RanksWithoutDataFollowThoseThatCatchAnErrorOfAllRanks) {
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

// What rank 1 does after the error that leaves `train` of rank 0: it has data left, or none.
TEST_P(Shares, AnErrorOfAllRanksThatLeavesTrainOnOneEndsJoinOnAll) {
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
      EXPECT_EQ(gradient_of(model.heads[0]), 1) << "the group goes on";
    }));
}

TEST_P(Shares, AnErrorOfOneRankBehindOneOfAllRanksThatItCaughtEndsTheGroup) {
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

TEST_P(Shares, AJoinThatHasEndedOnAllRanksIsNotGoneOnWith) {
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
                        HasSubstr("an error of step 1 has ended it on all ranks: let it leave `train`"));
          },
          {.throw_on_early_termination = true});
    });
    EXPECT_THAT(said, HasSubstr(group->rank() == 1 ? "rank 1 has no data left" : "has ended it on all ranks"));
    pass();
    EXPECT_EQ(gradient_of(model.heads[0]), 1) << "the group goes on";
  }));
}

TEST_P(Shares, AWeightGoesWithItsPassHoweverThatEnds) {
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
    heads_loss(ddp, 1).backward();  // without weights on both
  });
  EXPECT_THAT(failures, Each(""));
}

TEST_P(Shares, JoinRefusesOptionsThatDifferAndStaticGraphs) {
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

TEST_P(Shares, EpochsOfUnequalLengthAreAnErrorWithTheNumbers) {
  const auto failures = run_ranks(4, GetParam(), [](auto group) {
    Heads model;
    DistributedDataParallel ddp(model, group);
    ddp.begin_epoch(12);
    ddp.begin_epoch(group->rank() == 2 ? 11 : 12);
  });
  EXPECT_THAT(failures, Each(HasSubstr("11 on rank 2; 12 on rank 0, 1, 3.")));
}

}  // namespace
}  // namespace lockstep::testing
