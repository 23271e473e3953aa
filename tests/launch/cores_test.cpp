#include "src/launch/topology/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "lockstep/launch/launch.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(AssignCores, SharesAreContiguousAndUseEveryCore) {
  EXPECT_THAT(assign_cores({0, 1, 2, 3}, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(assign_cores({4, 6, 9}, 3), ElementsAre(ElementsAre(4), ElementsAre(6), ElementsAre(9)));
  EXPECT_THAT(assign_cores({7, 5, 3, 1, 0}, 2), ElementsAre(ElementsAre(7, 5), ElementsAre(3, 1, 0)));
}

TEST(AssignCores, TooFewCoresBindNobody) {
  EXPECT_THAT(assign_cores({0, 1}, 3), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST(AssignCores, DisjointForAnyCount) {
  for (int cores = 1; cores <= 33; ++cores)
    for (int ranks = 1; ranks <= cores; ++ranks) {
      std::vector<int> all(static_cast<std::size_t>(cores));
      for (int i = 0; i < cores; ++i) all[static_cast<std::size_t>(i)] = 100 + i;
      std::set<int> seen;
      std::size_t smallest = all.size(), largest = 0;
      for (const auto& share : assign_cores(all, ranks)) {
        smallest = std::min(smallest, share.size());
        largest = std::max(largest, share.size());
        for (const int core : share)
          EXPECT_TRUE(seen.insert(core).second) << core << " of " << cores << " twice among " << ranks;
      }
      EXPECT_EQ(seen.size(), all.size());
      EXPECT_GE(smallest, 1u);
      EXPECT_LE(largest - smallest, 1u);
    }
}

TEST(Cores, ABoundThreadSeesItsShareAlone) {
  const std::vector<int> before = inherited_cores();
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(std::set<int>(before.begin(), before.end()).size(), before.size());
  std::vector<int> inside;
  bool bound = false;
  std::thread([&] {
    bound = bind_to_cores({before.back()});
    inside = inherited_cores();
  }).join();
  EXPECT_TRUE(bound);
  EXPECT_THAT(inside, ElementsAre(before.back()));
  EXPECT_EQ(inherited_cores(), before);
}

TEST(MemoryNode, AThreadsMemoryComesFromItsNode) {
  if (const std::string obstacle = memory_choice_obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  bool preferred = false, impossible = true;
  std::string after;
  std::thread([&] {
    preferred = prefer_memory_of(0);
    after = memory_choice_obstacle();
    impossible = prefer_memory_of(1000) || prefer_memory_of(100000);
  }).join();
  EXPECT_TRUE(preferred);
  EXPECT_EQ(after, "the launcher was started with a policy of its own (numactl)");
  EXPECT_FALSE(impossible);
  EXPECT_EQ(memory_choice_obstacle(), "") << "other threads keep theirs";
}

}  // namespace
}  // namespace lockstep::launch
