// Work::then() as programs call it, in a process group over every backend with a thread: order, and the effect on other
// groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>

#include "lockstep/comm/process_group.h"
#include "tests/conformance/cases.h"

namespace lockstep::testing {
namespace {

class Continuations : public OverBackends {};

TEST_P(Continuations, FollowersAndComputationsKeepTheirPlacesAmongTheCalls) {
  run_threads(spec(), [](Rank& rank) {
    const auto group = rank.into_group();
    const auto ranks = static_cast<float>(group->world_size());
    for (int round = 0; round < 5; ++round) {
      std::vector<float> first(3000, static_cast<float>(group->rank() + 1)), second(3000), third(10, 1);
      const Work sum = group->all_reduce_async(first.data(), first.size(), DType::kFloat32);
      const Work follower = sum.then([&](Stream&) {
        for (std::size_t i = 0; i < second.size(); ++i) second[i] = first[i] * 10 + static_cast<float>(group->rank());
        return group->all_reduce_async(second.data(), second.size(), DType::kFloat32, ReduceOp::kMax,
                                       {.purpose = {"follower"}});
      });
      const Work behind = group->all_reduce_async(third.data(), third.size(), DType::kFloat32);
      std::vector<float> result;
      const Work computed = follower.then([&](Stream&) {
        result = second;
        for (float& value : result) value += third[0];
      });
      computed.wait();
      behind.wait();
      const float total = ranks * (ranks + 1) / 2;
      EXPECT_THAT(second, ::testing::Each(total * 10 + ranks - 1));
      EXPECT_THAT(result, ::testing::Each(total * 10 + ranks - 1 + ranks));
    }
    group->barrier();
  });
}

// Whether the follower catches the error or the Work's waiter does: the group ends on all ranks, and other groups go
// on.
TEST_P(Continuations, AFollowersMismatchHarmsNoOtherGroup) {
  if (ranks() == 1) return;  // a single rank cannot mismatch
  for (const bool catches : {false, true}) {
    const Meeting others(spec());
    run_threads(spec(), [&](Rank& rank) {
      Rank other = others.join(rank.rank());
      const auto group = rank.into_group();
      std::vector<float> values(200, 1);
      const Work first = group->all_reduce_async(values.data(), values.size(), DType::kFloat32);
      const Work follower = first.then([&](Stream&) {
        try {
          return group->all_reduce_async(values.data(), group->rank() == 1 ? 100 : 200, DType::kFloat32);
        } catch (const MismatchError&) {
          if (!catches) throw;
          return Work();
        }
      });
      const std::string kind = outcome_of([&] { follower.wait(); }).kind;
      // Other ranks of a node may have ended the group before this rank's follower began: then it is dropped, and
      // catches nothing.
      if (!catches || kind != "none") {
        EXPECT_EQ(kind, "mismatch");
      }
      EXPECT_EQ(outcome_of([&] { group->barrier(); }).kind, "mismatch") << "the group is over";
      other.barrier();
    });
  }
}

TEST_P(Continuations, LeavingBesideOneHarmsNoOtherGroup) {
  const Meeting others(spec());
  run_threads(spec(), [&](Rank& rank) {
    Rank other = others.join(rank.rank());
    const auto group = rank.into_group();
    float value = 1, next = 1;
    std::promise<void> begun, gate;
    const Work first = group->all_reduce_async(&value, 1, DType::kFloat32);
    const Work follower = first.then([&](Stream&) {
      begun.set_value();
      gate.get_future().wait();
      return group->all_reduce_async(&next, 1, DType::kFloat32);
    });
    begun.get_future().wait();
    group->leave();
    gate.set_value();
    EXPECT_NE(outcome_of([&] { follower.wait(); }).kind, "none");
    EXPECT_EQ(value, static_cast<float>(rank.ranks()));
    other.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ring, Continuations, ::testing::ValuesIn(ring_cases({2, 4})), name_of_case);
INSTANTIATE_TEST_SUITE_P(Mpi, Continuations, ::testing::ValuesIn(mpi_cases()), name_of_case);

}  // namespace
}  // namespace lockstep::testing
