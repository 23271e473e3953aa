// Compares the model's formulas with values computed by hand. 1 GB/s moves 1000 bytes in 1 us.
#include "bench/lib/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

constexpr Link kLocal{0.5, 20}, kNet{10, 2};
const Cluster kCluster{kLocal, kNet, 8};
const Cluster kOneANode{kLocal, kNet, 1};

double ring(const Cluster& cluster, int ranks, double bytes) {
  return all_reduce_us(Algorithm::kRing, cluster, ranks, bytes);
}
double hierarchical(const Cluster& cluster, int ranks, double bytes) {
  return all_reduce_us(Algorithm::kHierarchical, cluster, ranks, bytes);
}
double tree(const Cluster& cluster, int ranks, double bytes) {
  return all_reduce_us(Algorithm::kTree, cluster, ranks, bytes);
}

TEST(CostModel, RingOfTwoIsTwoMessagesOfHalf) {
  EXPECT_DOUBLE_EQ(ring(kCluster, 2, 80'000), 2 * (0.5 + 40'000 / 20'000.0));
  EXPECT_DOUBLE_EQ(ring(kOneANode, 2, 80'000), 2 * (10 + 40'000 / 2'000.0));
}

TEST(CostModel, RingWaitsForTheSlowestEdge) {
  EXPECT_DOUBLE_EQ(ring(kCluster, 8, 80'000), 14 * (0.5 + 10'000 / 20'000.0));
  EXPECT_DOUBLE_EQ(ring(kCluster, 16, 80'000), 30 * (10 + 5'000 / 2'000.0));
  const Cluster slow_inside{{0.5, 1}, kNet, 2};
  EXPECT_DOUBLE_EQ(ring(slow_inside, 4, 80'000), 6 * (10 + 20'000 / 1'000.0))
      << "the net's latency, the node's bandwidth";
}

TEST(CostModel, HierarchicalInOneNodeIsTheLocalCostAlone) {
  const double by_hand = 2 * (3 * 0.5 + 7 * 80'000 / 8 / 20'000.0);
  EXPECT_DOUBLE_EQ(hierarchical(kCluster, 8, 80'000), by_hand);
  EXPECT_DOUBLE_EQ(hierarchical({kLocal, {1e5, 1e-3}, 8}, 8, 80'000), by_hand) << "the net has no effect";
}

TEST(CostModel, HierarchicalAddsARingOverNodes) {
  const double local = hierarchical(kCluster, 8, 80'000);
  EXPECT_DOUBLE_EQ(hierarchical(kCluster, 32, 80'000), local + 6 * (10 + 20'000 / 2'000.0)) << "4 nodes";
  EXPECT_DOUBLE_EQ(hierarchical(kOneANode, 32, 80'000), ring(kOneANode, 32, 80'000))
      << "with one rank per node, only the ring remains";
}

TEST(CostModel, TreeByHand) {
  // 8 nodes, h = 3, 4 bytes: one segment per tree, 2 (2 * 3 + 2) steps.
  EXPECT_DOUBLE_EQ(tree(kOneANode, 8, 4), 16 * (10 + 2 / 2'000.0));
  // The best number of segments is sqrt(m b h / 2a) = sqrt(15e6 / 2e3 * 3 / 20) = 33.5, so the smaller result of 33
  // and 34.
  const auto with = [](double k) { return 2 * (6 + 2 * k) * (10 + 15e6 / (2 * k) / 2'000.0); };
  EXPECT_NEAR(tree(kOneANode, 8, 15e6), std::min(with(33), with(34)), 1e-6);
  for (const double k : {1.0, 10.0, 30.0, 40.0, 100.0}) EXPECT_LT(tree(kOneANode, 8, 15e6), with(k));
}

TEST(CostModel, TreesLatencyGrowsWithTheLogarithmAndTheRingsWithTheRanks) {
  for (int ranks = 4; ranks <= 2048; ranks *= 2) {
    EXPECT_NEAR(tree(kOneANode, 2 * ranks, 4) - tree(kOneANode, ranks, 4), 4 * 10, 0.1)
        << "two steps down and two up per level";
    EXPECT_NEAR(ring(kOneANode, 2 * ranks, 4) - ring(kOneANode, ranks, 4), 2.0 * ranks * 10, 0.1);
  }
  EXPECT_DOUBLE_EQ(tree(kOneANode, 5, 4), tree(kOneANode, 8, 4)) << "a partial level counts";
}

TEST(CostModel, LargeMessagesCostTwiceTheirBytesOnTheSlowestLink) {
  const double wire_us = 2 * 1e12 / 2'000;
  for (const auto cost : {ring, hierarchical, tree}) EXPECT_NEAR(cost(kCluster, 4096, 1e12) / wire_us, 1, 0.12);
}

TEST(CostModel, MoreBytesNeverCostLess) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const int ranks : {2, 8, 16, 4096}) {
      double before = 0;
      for (double bytes = 1; bytes < 1e10; bytes *= 1.37) {
        const double now = all_reduce_us(algorithm, kCluster, ranks, bytes);
        EXPECT_GT(now, before) << name_of(algorithm) << ", " << ranks << " ranks, " << bytes << " bytes";
        before = now;
      }
    }
}

TEST(CostModel, OneRankNeedsNoTimeAndHalfFilledNodesAreRefused) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(all_reduce_us(algorithm, kCluster, 1, 1e6), 0);
    EXPECT_THROW(all_reduce_us(algorithm, kCluster, 12, 1e6), std::logic_error);
  }
}

TEST(CostModel, AFitGivesTheLinkThatGivesTheFit) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Link link = link_of_fit(7, 5, ranks);
    EXPECT_NEAR(hierarchical({link, kNet, 8}, ranks, 1e6), 7 + 1e6 / 5'000, 1e-9) << ranks;
  }
  EXPECT_DOUBLE_EQ(link_of_fit(7, 5, 2).alpha_us, 3.5);
  EXPECT_DOUBLE_EQ(link_of_fit(7, 5, 2).gbps, 5);
}

TEST(StepModel, OneBucketIsNeverHidden) {
  const TrainingStep step{900, 1000, 1000};
  EXPECT_DOUBLE_EQ(step_us(step, [](double bytes) { return bytes / 10; }), 900 + 100);
}

TEST(StepModel, OnlyTheLastBucketShowsWhenTheWireKeepsUp) {
  // Forward 300 us, backward 600 us: buckets of 300, 300, 300 and 100 are ready at 480, 660, 840, 900.
  const TrainingStep step{900, 1000, 300};
  std::vector<double> sizes;
  const double us = step_us(step, [&](double bytes) {
    sizes.push_back(bytes);
    return 50.0;
  });
  EXPECT_THAT(sizes, ElementsAre(300, 300, 300, 100));
  EXPECT_THAT(us, DoubleNear(900 + 50, 1e-9));
}

TEST(StepModel, ASlowWireIsBusyFromTheFirstBucketOn) {
  const TrainingStep step{900, 1000, 300};
  EXPECT_THAT(step_us(step, [](double) { return 1000.0; }), DoubleNear(480 + 4 * 1000, 1e-9));
}

TEST(StepModel, NeverFasterThanComputeAlone) {
  EXPECT_DOUBLE_EQ(step_us({900, 1000, 300}, [](double) { return 0.0; }), 900);
}

TEST(RankCounts, FillNodes) {
  EXPECT_THAT(rank_counts(8, 64), ElementsAre(2, 4, 8, 16, 32, 64));
  EXPECT_THAT(rank_counts(1, 8), ElementsAre(2, 4, 8));
  EXPECT_THAT(rank_counts(6, 50), ElementsAre(2, 4, 6, 12, 24, 48));
  EXPECT_EQ(rank_counts(8, 4096).back(), 4096);
}

}  // namespace
}  // namespace lockstep::bench
