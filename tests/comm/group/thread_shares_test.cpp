#include "src/comm/group/thread_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(ThreadShares, RanksThatNobodyHasBoundShareAllCores) {
  const RankCores loose{"a", {0, 1, 2, 3, 4, 5, 6, 7}};
  EXPECT_THAT(thread_shares({loose}), ElementsAre(8));
  EXPECT_THAT(thread_shares({loose, loose}), ElementsAre(4, 4));
  EXPECT_THAT(thread_shares({loose, loose, loose}), ElementsAre(2, 2, 2));
  EXPECT_THAT(thread_shares({{"a", {0, 1, 2}}, {"a", {0, 1, 2}}, {"a", {0, 1, 2}}}), ElementsAre(1, 1, 1));
  EXPECT_THAT(thread_shares({{"a", {0}}, {"a", {0}}}), ElementsAre(1, 1)) << "more ranks than cores";
}

TEST(ThreadShares, BoundRanksHaveTheirOwn) {
  EXPECT_THAT(thread_shares({{"a", {0, 1}}, {"a", {2, 3}}}), ElementsAre(2, 2));
  EXPECT_THAT(thread_shares({{"a", {0, 1, 2}}, {"a", {3, 4}}}), ElementsAre(2, 2)) << "one would wait for the other";
  EXPECT_THAT(thread_shares({{"a", {0, 1, 2, 3}}, {"a", {0, 1, 2, 3}}, {"a", {4, 5}}, {"a", {6, 7}}}),
              ElementsAre(2, 2, 2, 2))
      << "by halves";
}

TEST(ThreadShares, MachinesAreApart) {
  EXPECT_THAT(thread_shares({{"a", {0, 1}}, {"b", {0, 1, 2, 3}}, {"b", {0, 1, 2, 3}}}), ElementsAre(2, 2, 2));
  EXPECT_THAT(thread_shares({{"a", {0}}, {"b", {0, 1, 2, 3}}}), ElementsAre(1, 4));
  EXPECT_THAT(thread_shares({{"a", {}}}), ElementsAre(1)) << "the system did not say";
}

TEST(ThreadShares, RanksOfAContainerShareItsQuota) {
  const std::vector<int> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  const RankCores narrow{"a", eight, "pod", 2}, wide{"a", eight, "job", 100}, free{"a", eight};
  EXPECT_THAT(thread_shares({narrow}), ElementsAre(2));
  EXPECT_THAT(thread_shares({narrow, narrow}), ElementsAre(1, 1));
  EXPECT_THAT(thread_shares({narrow, narrow, narrow}), ElementsAre(1, 1, 1));
  EXPECT_THAT(thread_shares({wide, wide}), ElementsAre(4, 4));
  EXPECT_THAT(thread_shares({free, narrow}), ElementsAre(2, 2)) << "one would wait for the other";
  EXPECT_THAT(thread_shares({{"a", {0, 1}, "1", 1}, {"b", {0, 1}, "1", 2}}), ElementsAre(1, 2));
}

}  // namespace
}  // namespace lockstep
