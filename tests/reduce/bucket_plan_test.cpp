#include "lockstep/reduce/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "lockstep/core/error.h"
#include "lockstep/reduce/reducer.h"

namespace lockstep {
namespace {

std::vector<std::vector<std::size_t>> buckets_of(const std::vector<GradientInfo>& gradients, const BucketCaps& caps) {
  std::vector<std::vector<std::size_t>> buckets;
  for (const BucketLayout& layout : plan_buckets(gradients, caps)) {
    std::vector<std::size_t>& bucket = buckets.emplace_back();
    for (const Slot& slot : layout.slots) bucket.push_back(slot.gradient);
  }
  return buckets;
}

using Buckets = std::vector<std::vector<std::size_t>>;

TEST(BucketPlan, GoesBackwardsAndClosesOnReachingTheCap) {
  // 256 bytes each; the first bucket closes at 300, the others at 600.
  const std::vector<GradientInfo> gradients(7, GradientInfo{"g", 64});
  EXPECT_EQ(buckets_of(gradients, {300, 600}), (Buckets{{6, 5}, {4, 3, 2}, {1, 0}}));
  EXPECT_EQ(buckets_of(gradients, {256, 256}), (Buckets{{6}, {5}, {4}, {3}, {2}, {1}, {0}}));
  EXPECT_EQ(buckets_of(gradients, {1 << 20, 1 << 20}), (Buckets{{6, 5, 4, 3, 2, 1, 0}}));
}

TEST(BucketPlan, EachBucketHasItsCapAndTheLastCapHoldsForTheRest) {
  const std::vector<GradientInfo> gradients(9, GradientInfo{"g", 64});  // 256 bytes each
  EXPECT_EQ(buckets_of(gradients, {256, 768, 512}), (Buckets{{8}, {7, 6, 5}, {4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(buckets_of(gradients, {1024}), (Buckets{{8, 7, 6, 5}, {4, 3, 2, 1}, {0}}));
}

TEST(BucketPlan, DelayedGradientsAreInTheLastBucketsWithTheirOwnCaps) {
  std::vector<GradientInfo> gradients(6, GradientInfo{"g", 64});
  gradients[5].delayed = gradients[4].delayed = gradients[2].delayed = true;
  EXPECT_EQ(buckets_of(gradients, {256, 512}), (Buckets{{3}, {1, 0}, {5}, {4, 2}}));
}

TEST(BucketPlan, FollowsAKnownOrder) {
  std::vector<GradientInfo> gradients(6, GradientInfo{"g", 64});
  gradients[1].delayed = true;
  gradients[3].dtype = DType::kFloat64;
  const std::vector<std::size_t> order = {2, 1, 3, 5, 0, 4};
  const auto flat = [](const std::vector<BucketLayout>& plan) {
    std::vector<std::size_t> all;
    for (const BucketLayout& layout : plan)
      for (const Slot& slot : layout.slots) all.push_back(slot.gradient);
    return all;
  };
  const auto plan = plan_buckets(gradients, {256, 512}, order);
  EXPECT_EQ(flat(plan), (std::vector<std::size_t>{2, 3, 5, 0, 4, 1}));
  ASSERT_EQ(plan.size(), 5U);
  EXPECT_EQ(plan[2].slots.size(), 2U) << "5 and 0";
  EXPECT_EQ(plan_buckets(gradients, {256, 512}, flat(plan)), plan) << "the concatenated slots are such an order";
  EXPECT_EQ(plan_buckets(gradients, {256, 512}, std::vector<std::size_t>{5, 4, 3, 2, 1, 0}),
            plan_buckets(gradients, {256, 512}));
  for (const std::vector<std::size_t>& wrong :
       {std::vector<std::size_t>{}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 4}, {0, 1, 2, 3, 4, 6}, {0, 1, 2, 3, 4, 5, 0}})
    EXPECT_THROW(plan_buckets(gradients, {256}, wrong), InvalidArgument);
}

TEST(BucketPlan, ALargeGradientClosesItsBucket) {
  const std::vector<GradientInfo> gradients = {{"small", 1}, {"large", 1000}, {"last", 1}};
  EXPECT_EQ(buckets_of(gradients, {1000, 1000}), (Buckets{{2, 1}, {0}}));
}

TEST(BucketPlan, TypesAndDevicesHaveTheirOwnBucketsInTheOrderOfTheirLastGradient) {
  std::vector<GradientInfo> gradients(6, GradientInfo{"g", 16});
  gradients[1].dtype = gradients[4].dtype = DType::kFloat64;
  gradients[0].device = DeviceKind::kCuda;
  const auto plan = plan_buckets(gradients, {1 << 20, 1 << 20});
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].slots.size(), 3u);  // 5, 3, 2
  EXPECT_EQ(plan[0].dtype, DType::kFloat32);
  EXPECT_EQ(plan[1].slots.back().gradient, 1u);
  EXPECT_EQ(plan[1].dtype, DType::kFloat64);
  EXPECT_EQ(plan[2].device, DeviceKind::kCuda);
}

TEST(BucketPlan, TheTutorialNetworkByTheDefaultCaps) {
  // conv1, conv2, local3, local4, softmax: weight and bias each. local3's weight has 3.5 MB, everything after it 0.4
  // MB.
  std::vector<GradientInfo> gradients;
  for (const std::size_t count : {4800, 64, 102400, 64, 884736, 384, 73728, 192, 1920, 10})
    gradients.push_back({"g", count});
  EXPECT_EQ(buckets_of(gradients, ReducerOptions{}.caps), (Buckets{{9, 8, 7, 6, 5, 4}, {3, 2, 1, 0}}));
}

TEST(BucketPlan, SlotsAreAlignedDisjointAndCoverEveryGradientOnce) {
  std::vector<GradientInfo> gradients;
  for (std::size_t i = 0; i < 50; ++i) gradients.push_back({"g", (i * 37) % 101});
  std::vector<int> seen(50);
  for (const BucketLayout& layout : plan_buckets(gradients, {1000, 3000})) {
    std::size_t end = 0;
    for (const Slot& slot : layout.slots) {
      EXPECT_EQ(slot.offset % 64, 0u);
      EXPECT_GE(slot.offset, end);
      end = slot.offset + gradients[slot.gradient].bytes();
      ++seen[slot.gradient];
    }
    EXPECT_LE(end, layout.bytes);
  }
  for (const int count : seen) EXPECT_EQ(count, 1);
}

TEST(BucketPlan, KeepsItsRulesOnRandomLists) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<GradientInfo> gradients(random() % 40);
    for (GradientInfo& g : gradients) g = {"g", random() % 2000, random() % 4 == 0 ? DType::kFloat64 : DType::kFloat32};
    const BucketCaps caps{random() % 4096 + 1, random() % 16384 + 1};
    std::vector<int> seen(gradients.size(), 0);
    std::size_t last_of_previous = gradients.size();
    for (const BucketLayout& bucket : plan_buckets(gradients, caps)) {
      ASSERT_FALSE(bucket.slots.empty());
      std::size_t end = 0, before = gradients.size();
      for (const Slot& slot : bucket.slots) {
        ++seen[slot.gradient];
        EXPECT_EQ(gradients[slot.gradient].dtype, bucket.dtype);
        EXPECT_LT(slot.gradient, before) << "reverse order within the bucket";
        EXPECT_EQ(slot.offset, (end + 63) / 64 * 64) << "slots do not overlap and have only padding between them";
        before = slot.gradient;
        end = slot.offset + gradients[slot.gradient].bytes();
      }
      EXPECT_EQ(bucket.bytes, (end + 63) / 64 * 64);
      EXPECT_LT(bucket.slots.back().offset, std::max(caps.front(), caps.back()))
          << "a bucket exceeds its cap only by its last gradient";
      EXPECT_LT(bucket.slots.back().gradient, last_of_previous) << "numbered in the order of their last gradient";
      last_of_previous = bucket.slots.back().gradient;
    }
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << "gradient " << i;
  }
}

TEST(BucketPlan, NothingGivesNothingAndCapsMustBePositive) {
  EXPECT_TRUE(plan_buckets({}, {1}).empty());
  EXPECT_THROW(plan_buckets({}, {}), InvalidArgument) << "no cap";
  EXPECT_THROW(plan_buckets({}, {0, 1}), InvalidArgument);
  EXPECT_THROW(plan_buckets({}, {1, 2, 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
