// The reducer over a backend that records its calls: what it starts when and from which memory, and its state after a
// failure.
#include "lockstep/reduce/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "lockstep/comm/backend_context.h"
#include "lockstep/core/error.h"
#include "src/comm/local/local_backend.h"
#include "src/comm/testing/recording_backend.h"
#include "tests/support/heap_count.h"

namespace lockstep {
namespace {

using test_support::heap_allocations;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReducerTest : public ::testing::Test {
 protected:
  // Four gradients of 16 floats, in buckets {3}, {2, 1}, {0}.
  std::vector<GradientInfo> gradients() const { return {{"a", 16}, {"b", 16}, {"c", 16}, {"d", 16}}; }
  Reducer make(CommHook hook = {}) { return Reducer(group, gradients(), {{64, 128}, std::move(hook)}); }
  static std::span<float> floats(const Buffer& slot) {
    return {reinterpret_cast<float*>(slot.data()), slot.bytes() / sizeof(float)};
  }

  std::vector<std::int32_t> buckets() const {
    std::vector<std::int32_t> indices;
    for (const RecordedCall& call : record.calls()) indices.push_back(call.operation.signature.purpose_index);
    return indices;
  }

  // The inner backend's calls are done at once, so the record counts only the calls that were waited for.
  std::shared_ptr<ProcessGroup> group =
      ProcessGroup::wrap({.rank = 0, .world_size = 2}, std::make_unique<RecordingBackend>(make_local_backend()));
  RecordingBackend& record = recorded(group->backend());
};

TEST_F(ReducerTest, AllocatesEveryBucketFromTheGroupAndHandsOutZeroedSlots) {
  Reducer reducer = make();
  EXPECT_THAT(record.allocations(), ElementsAre(128, 128, 128)) << "two slices, rounded up to slots";
  std::set<std::byte*> addresses;
  for (std::size_t i = 0; i < 4; ++i) {
    const Buffer slot = reducer.slot(i);
    EXPECT_EQ(slot.bytes(), 64U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data()) % 64, 0U);
    EXPECT_THAT(floats(slot), ::testing::Each(0.0F));
    addresses.insert(slot.data());
  }
  EXPECT_EQ(addresses.size(), 4U);
  EXPECT_EQ(reducer.slot(1).data(), reducer.slot(2).data() + 64);
}

TEST_F(ReducerTest, ReducesTheMemoryOfTheSlotsInPlace) {
  Reducer reducer = make();
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  ASSERT_EQ(record.calls().size(), 3U);
  EXPECT_EQ(record.calls()[0].operation.receive, reducer.slot(3).data());
  EXPECT_EQ(record.calls()[1].operation.receive, reducer.slot(2).data());
  EXPECT_EQ(record.calls()[2].operation.receive, reducer.slot(0).data());
  for (const RecordedCall& call : record.calls()) {
    const Operation& operation = call.operation;
    EXPECT_TRUE(call.is_async);
    EXPECT_EQ(operation.send, operation.receive) << "in place";
    EXPECT_EQ(operation.signature.kind, OperationKind::kAllReduce);
    EXPECT_EQ(operation.signature.op, ReduceOp::kAvg);
    EXPECT_EQ(operation.signature.dtype, DType::kFloat32);
    EXPECT_STREQ(operation.purpose.name, "bucket");
  }
  EXPECT_EQ(record.calls()[1].operation.signature.count, 32U);
  reducer.finish();
}

TEST_F(ReducerTest, StartsABucketAtItsLastGradientAndWaitsOnlyInFinish) {
  Reducer reducer = make();
  EXPECT_FALSE(reducer.in_pass());
  reducer.mark_ready(3);
  EXPECT_TRUE(reducer.in_pass());
  EXPECT_TRUE(reducer.is_ready(3));
  EXPECT_FALSE(reducer.is_ready(2));
  EXPECT_THAT(buckets(), ElementsAre(0));
  reducer.mark_ready(2);
  EXPECT_THAT(buckets(), ElementsAre(0));
  reducer.mark_ready(1);
  EXPECT_THAT(buckets(), ElementsAre(0, 1));
  reducer.mark_ready(0);
  EXPECT_THAT(buckets(), ElementsAre(0, 1, 2));
  EXPECT_EQ(record.completed(), 0U);
  EXPECT_TRUE(reducer.finish().empty());
  EXPECT_EQ(record.completed(), 3U);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_FALSE(reducer.is_ready(3));
}

TEST_F(ReducerTest, StartsInBucketOrderWhateverTheOrderOfArrival) {
  Reducer reducer = make();
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    record.clear_calls();
    for (const std::size_t i : order) reducer.mark_ready(i);
    EXPECT_THAT(buckets(), ElementsAre(0, 1, 2));
    EXPECT_TRUE(reducer.finish().empty());
    const auto times = reducer.last_pass();
    for (std::size_t b = 0; b < 3; ++b) EXPECT_LE(times[b].ready, times[b].launched);
    EXPECT_LE(times[0].launched, times[1].launched);
    EXPECT_LE(times[1].launched, times[2].launched);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ReducerTest, ABucketThatIsFullWaitsForTheOnesBefore) {
  Reducer reducer = make();
  reducer.mark_ready(0);
  reducer.mark_ready(1);
  reducer.mark_ready(2);
  EXPECT_THAT(buckets(), ElementsAre());
  reducer.mark_ready(3);
  EXPECT_THAT(buckets(), ElementsAre(0, 1, 2));
  reducer.finish();
}

TEST_F(ReducerTest, FinishZeroesAndReducesUnmarkedGradients) {
  Reducer reducer = make();
  for (std::size_t i = 0; i < 4; ++i) std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), 7.0F);
  reducer.mark_ready(1);
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 2, 3));
  EXPECT_THAT(buckets(), ElementsAre(0, 1, 2));
  EXPECT_EQ(record.completed(), 3U);
  EXPECT_THAT(floats(reducer.slot(1)), ::testing::Each(7.0F));
  for (const std::size_t i : {0, 2, 3}) EXPECT_THAT(floats(reducer.slot(i)), ::testing::Each(0.0F));
}

TEST_F(ReducerTest, APassWithoutGradientsIsAlsoReduced) {
  Reducer reducer = make();
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(buckets(), ElementsAre(0, 1, 2));
}

TEST_F(ReducerTest, NamesAGradientMarkedTwiceAndTheNextPassIsClean) {
  Reducer reducer = make();
  reducer.mark_ready(2);
  try {
    reducer.mark_ready(2);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'c' was marked ready twice"));
    EXPECT_THAT(error.what(), HasSubstr("was backward run twice"));
  }
  EXPECT_FALSE(reducer.in_pass());
  for (std::size_t i = 0; i < 4; ++i) reducer.mark_ready(i);
  EXPECT_TRUE(reducer.finish().empty());
}

TEST_F(ReducerTest, RefusesAGradientThatDoesNotExist) {
  Reducer reducer = make();
  EXPECT_THROW(reducer.mark_ready(4), std::logic_error);
  EXPECT_THROW(reducer.slot(4), std::logic_error);
  EXPECT_FALSE(reducer.in_pass());
}

TEST_F(ReducerTest, ACommHookReplacesTheAverage) {
  std::vector<int> seen;
  Reducer reducer = make([&](ProcessGroup& group, const GradBucket& bucket) {
    seen.push_back(bucket.index);
    auto* values = static_cast<float*>(bucket.buffer);
    for (std::size_t i = 0; i < bucket.count; ++i) values[i] *= 0.5F;
    return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kSum, {.device = bucket.device});
  });
  for (std::size_t i = 0; i < 4; ++i) {
    std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), static_cast<float>(i));
    reducer.mark_ready(i);
  }
  reducer.finish();
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(floats(reducer.slot(i)), ::testing::Each(static_cast<float>(i) / 2));
  ASSERT_EQ(record.calls().size(), 4U);
  for (int b = 0; b < 3; ++b)
    EXPECT_EQ(record.calls()[static_cast<std::size_t>(b)].operation.signature.op, ReduceOp::kSum);
  EXPECT_STREQ(record.calls()[3].operation.purpose.name, "comm hook check") << "after the first pass";
  reducer.finish();
  EXPECT_EQ(record.calls().size(), 7U);
}

TEST_F(ReducerTest, ACommHookSeesNamesShapesPlacesAndTheLastBucket) {
  std::vector<std::string> seen;
  const CommHook hook = [&](ProcessGroup& group, const GradBucket& bucket) {
    for (const GradSlot& slot : bucket.slots)
      seen.push_back(fmt::format("{} {} {} at {} of {}{}", bucket.index, slot.name, slot.shape.text(), slot.offset,
                                 bucket.count, bucket.is_last ? ", last" : ""));
    return group.all_reduce_async(bucket.buffer, bucket.count, bucket.dtype, ReduceOp::kAvg);
  };
  Reducer reducer(group, {{.name = "a", .count = 12, .shape = {3, 4}}, {"b", 3, DType::kFloat64}, {"c", 20}},
                  {{256}, hook});
  reducer.finish();
  EXPECT_THAT(seen, ElementsAre("0 b (3) at 0 of 8", "1 c (20) at 0 of 48, last", "1 a (3, 4) at 32 of 48, last"));
}

TEST_F(ReducerTest, AHookIsCheckedAndPreparedFirst) {
  struct Careful : BucketHook {
    std::vector<std::string> prepared;
    std::string describe() const override { return "careful"; }
    std::string refusal(std::span<const GradientInfo> gradients) const override {
      return gradients.size() == 4 ? "" : "careful takes four gradients";
    }
    void prepare(const ProcessGroup&, std::span<const GradientInfo> gradients) override {
      for (const GradientInfo& gradient : gradients) prepared.push_back(gradient.name);
    }
    Work reduce(ProcessGroup&, const GradBucket&) override { return {}; }
    bool averages() const override { return false; }
  };
  const auto hook = std::make_shared<Careful>();
  Reducer reducer = make(hook);
  EXPECT_THAT(hook->prepared, ElementsAre("a", "b", "c", "d"));
  reducer.finish();
  EXPECT_EQ(record.calls().size(), 0U) << "a hook that does not average is not compared";
  EXPECT_THROW(Reducer(group, {{"d", 4}}, {.comm_hook = hook}), InvalidArgument);
}

TEST_F(ReducerTest, TheFactorIsReadOncePerPassBeforeTheFirstBucket) {
  int asked = 0;
  float factor = 0.5F;
  ReducerOptions options{.caps = {64, 128}, .factor = [&] {
                           ++asked;
                           if (factor == 0) throw Error("no factor");
                           return factor;
                         }};
  Reducer reducer(group, gradients(), options);
  for (std::size_t i = 0; i < 4; ++i) std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), 3.0F);
  reducer.mark_ready(0);
  EXPECT_EQ(asked, 0);
  for (const std::size_t i : {3, 2, 1}) reducer.mark_ready(i);
  reducer.finish();
  EXPECT_EQ(asked, 1);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(floats(reducer.slot(i)), ::testing::Each(1.5F));
  factor = 0;
  EXPECT_THROW(reducer.mark_ready(3), Error);
  EXPECT_FALSE(reducer.in_pass());
  factor = 1;
  reducer.finish();
  EXPECT_EQ(asked, 3);
  options.factor = [] { return 1.0F; };
  EXPECT_THROW(Reducer(group, {{"d", 4, DType::kFloat64}}, options), InvalidArgument);
}

TEST_F(ReducerTest, BucketsAreRebuiltInTheOrderOfArrivalWithTheirValues) {
  Reducer reducer = make();
  for (const std::size_t i : {1, 3, 0}) reducer.mark_ready(i);
  reducer.finish();
  EXPECT_THAT(reducer.arrival_order(), ElementsAre(1, 3, 0, 2)) << "unmarked gradients are last";
  for (std::size_t i = 0; i < 4; ++i)
    std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), static_cast<float>(i));
  std::vector<Buffer> slots;
  for (std::size_t i = 0; i < 4; ++i) slots.push_back(reducer.slot(i));
  const std::size_t in_use = cpu_device().allocator_stats().bytes_in_use;
  std::size_t most = 0;
  const std::vector<std::size_t> order(reducer.arrival_order().begin(), reducer.arrival_order().end());
  const auto move = [&](std::size_t gradient, const Buffer& slot) {
    slots[gradient] = slot;
    most = std::max(most, cpu_device().allocator_stats().bytes_in_use);
  };
  EXPECT_TRUE(reducer.rebuild(order, move));
  EXPECT_THAT(record.allocations(), ElementsAre(128, 128, 128, 128, 128, 128));
  EXPECT_EQ(cpu_device().allocator_stats().bytes_in_use, in_use) << "the old buckets were not freed";
  EXPECT_LT(most, 2 * in_use) << "the old buckets were not freed one by one";
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slots[i].data(), reducer.slot(i).data());
    EXPECT_THAT(floats(reducer.slot(i)), ::testing::Each(static_cast<float>(i)));
  }
  EXPECT_FALSE(reducer.rebuild(order, move)) << "the plan is unchanged";
  record.clear_calls();
  reducer.mark_ready(1);
  EXPECT_THAT(buckets(), ElementsAre(0)) << "the first bucket has only the first gradient";
  for (const std::size_t i : {3, 0, 2}) reducer.mark_ready(i);
  reducer.finish();
  EXPECT_EQ(reducer.last_pass().size(), 3U);
}

TEST_F(ReducerTest, AFailedStartEndsThePass) {
  Reducer reducer = make();
  record.plan({.starting = 2});
  reducer.mark_ready(3);
  reducer.mark_ready(2);
  EXPECT_THROW(reducer.mark_ready(1), PeerLost);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_EQ(record.completed(), 1U) << "started calls may still write into the buckets";
  record.plan({});
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  EXPECT_TRUE(reducer.finish().empty());
  EXPECT_THAT(buckets(), ElementsAre(0, 0, 1, 2));
}

TEST_F(ReducerTest, AFailureInFinishEndsThePass) {
  Reducer reducer = make();
  record.plan({.waiting = 2});
  reducer.mark_ready(1);
  EXPECT_THROW(reducer.finish(), PeerLost);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_EQ(record.completed(), 2U) << "the others were waited for";
  record.plan({});
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 1, 2, 3));
}

TEST_F(ReducerTest, AnAbandonedPassIsAwaitedAndForgotten) {
  Reducer reducer = make();
  for (const std::size_t i : {3, 2}) reducer.mark_ready(i);
  reducer.abandon_pass();
  EXPECT_EQ(record.completed(), 1U);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_FALSE(reducer.is_ready(3));
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  EXPECT_TRUE(reducer.finish().empty());
}

TEST_F(ReducerTest, DestructionWaitsForPendingCalls) {
  {
    Reducer reducer = make();
    reducer.mark_ready(3);
    EXPECT_EQ(record.completed(), 0U);
  }
  EXPECT_EQ(record.completed(), 1U);
  Reducer reducer = make();
  record.plan({.waiting = 2});
  reducer.mark_ready(3);  // the destructor must not throw
}

TEST_F(ReducerTest, APassAllocatesNothing) {
  Reducer reducer = make();
  record.reserve(306);
  const auto pass = [&] {
    for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
    EXPECT_EQ(reducer.finish().size(), 0U);
  };
  pass();
  pass();
  const std::size_t before = heap_allocations();
  const std::uint64_t blocks = cpu_device().allocator_stats().system_allocations;
  for (int i = 0; i < 100; ++i) pass();
  EXPECT_EQ(heap_allocations(), before);
  EXPECT_EQ(cpu_device().allocator_stats().system_allocations, blocks);
  EXPECT_EQ(record.calls().size(), 306U);
}

TEST(Reducer, WithAWorldOfOneDoesNotChangeGradients) {
  const auto group = ProcessGroup::wrap({}, make_backend("local", {}));
  Reducer reducer(group, {{"w", 5}, {"b", 3, DType::kFloat64}});
  auto* weights = reinterpret_cast<float*>(reducer.slot(0).data());
  auto* biases = reinterpret_cast<double*>(reducer.slot(1).data());
  std::iota(weights, weights + 5, 1.0F);
  std::iota(biases, biases + 3, 1.0);
  reducer.mark_ready(1);
  reducer.mark_ready(0);
  reducer.finish();
  EXPECT_THAT(std::span(weights, 5), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(std::span(biases, 3), ElementsAre(1, 2, 3));
  EXPECT_EQ(reducer.buckets().size(), 2U);
}

}  // namespace
}  // namespace lockstep
