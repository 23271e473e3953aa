// The reducer over a backend that records its calls: what is started when, from which memory, and what a failure leaves.
#include "lockstep/reduce/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/heap_count.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using test_support::heap_allocations;
using testing::HasSubstr;

// What a recording backend saw; outlives it. Operations complete when they are waited for, so that a test can see which
// ones were.
struct Record : CompletionQueue {
  Record() { operations.reserve(1024); }

  bool done(std::uint64_t ticket) override { return ticket <= completed; }
  void wait(std::uint64_t ticket) override {
    if (fail_waiting_for == ticket) throw PeerLost("rank 1 is gone");
    completed = std::max(completed, ticket);
  }
  void order_before(std::uint64_t ticket, Stream&) override { wait(ticket); }

  std::vector<std::int32_t> buckets() const {
    std::vector<std::int32_t> indices;
    for (const Operation& operation : operations) indices.push_back(operation.signature.purpose_index);
    return indices;
  }

  std::vector<Operation> operations;
  std::vector<std::size_t> allocated;
  std::uint64_t completed = 0;
  std::uint64_t fail_waiting_for = 0;
  std::size_t fail_starting_at = SIZE_MAX;
};

class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  std::string_view name() const override { return "recording"; }
  std::string_view transport() const override { return "none"; }
  void run(const Operation& operation) override { start(operation).wait(); }
  Work start(const Operation& operation) override {
    if (record_->operations.size() == record_->fail_starting_at) throw PeerLost("rank 1 is gone");
    record_->operations.push_back(operation);
    return Work(record_, record_->operations.size());
  }
  Buffer allocate(std::size_t bytes) override {
    record_->allocated.push_back(bytes);
    Buffer buffer = cpu_device().allocate(bytes);
    std::memset(buffer.data(), 0, bytes);
    return buffer;
  }
  void abort(const std::string&) override {}
  void leave() noexcept override {}
  TransportCounters counters() const override { return {}; }

 private:
  std::shared_ptr<Record> record_;
};

class ReducerTest : public testing::Test {
 protected:
  // Four gradients of 16 floats in buckets {3}, {2, 1}, {0}.
  std::vector<GradientInfo> gradients() const { return {{"a", 16}, {"b", 16}, {"c", 16}, {"d", 16}}; }
  Reducer make(CommHook hook = {}) {
    return Reducer(group, gradients(), {{.first_bucket_bytes = 64, .bucket_bytes = 128}, std::move(hook)});
  }
  static std::span<float> floats(const Buffer& slot) { return {reinterpret_cast<float*>(slot.data()), slot.bytes() / sizeof(float)}; }

  std::shared_ptr<Record> record = std::make_shared<Record>();
  std::shared_ptr<ProcessGroup> group = ProcessGroup::wrap({.rank = 0, .world_size = 2}, std::make_unique<RecordingBackend>(record));
};

TEST_F(ReducerTest, AllocatesEveryBucketFromTheGroupAndHandsOutZeroedSlots) {
  Reducer reducer = make();
  EXPECT_THAT(record->allocated, ElementsAre(64, 128, 64));
  std::set<std::byte*> addresses;
  for (std::size_t i = 0; i < 4; ++i) {
    const Buffer slot = reducer.slot(i);
    EXPECT_EQ(slot.bytes(), 64U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data()) % 64, 0U);
    EXPECT_THAT(floats(slot), testing::Each(0.0F));
    addresses.insert(slot.data());
  }
  EXPECT_EQ(addresses.size(), 4U);
  EXPECT_EQ(reducer.slot(1).data(), reducer.slot(2).data() + 64);
}

TEST_F(ReducerTest, ReducesTheVeryMemoryOfTheSlots) {
  Reducer reducer = make();
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  ASSERT_EQ(record->operations.size(), 3U);
  EXPECT_EQ(record->operations[0].receive, reducer.slot(3).data());
  EXPECT_EQ(record->operations[1].receive, reducer.slot(2).data());
  EXPECT_EQ(record->operations[2].receive, reducer.slot(0).data());
  for (const Operation& operation : record->operations) {
    EXPECT_EQ(operation.send, operation.receive) << "in place";
    EXPECT_EQ(operation.signature.kind, OperationKind::kAllReduce);
    EXPECT_EQ(operation.signature.op, ReduceOp::kAvg);
    EXPECT_EQ(operation.signature.dtype, DType::kFloat32);
    EXPECT_STREQ(operation.purpose.name, "bucket");
  }
  EXPECT_EQ(record->operations[1].signature.count, 32U);
  reducer.finish();
}

TEST_F(ReducerTest, StartsABucketAtItsLastGradientAndWaitsOnlyInFinish) {
  Reducer reducer = make();
  EXPECT_FALSE(reducer.in_pass());
  reducer.mark_ready(3);
  EXPECT_TRUE(reducer.in_pass());
  EXPECT_TRUE(reducer.is_ready(3));
  EXPECT_FALSE(reducer.is_ready(2));
  EXPECT_THAT(record->buckets(), ElementsAre(0));
  reducer.mark_ready(2);
  EXPECT_THAT(record->buckets(), ElementsAre(0));
  reducer.mark_ready(1);
  EXPECT_THAT(record->buckets(), ElementsAre(0, 1));
  reducer.mark_ready(0);
  EXPECT_THAT(record->buckets(), ElementsAre(0, 1, 2));
  EXPECT_EQ(record->completed, 0U);
  EXPECT_TRUE(reducer.finish().empty());
  EXPECT_EQ(record->completed, 3U);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_FALSE(reducer.is_ready(3));
}

TEST_F(ReducerTest, StartsInBucketOrderWhateverTheOrderOfArrival) {
  Reducer reducer = make();
  std::vector<std::size_t> order = {0, 1, 2, 3};
  do {
    record->operations.clear();
    for (const std::size_t i : order) reducer.mark_ready(i);
    EXPECT_THAT(record->buckets(), ElementsAre(0, 1, 2));
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
  EXPECT_THAT(record->buckets(), ElementsAre());
  reducer.mark_ready(3);
  EXPECT_THAT(record->buckets(), ElementsAre(0, 1, 2));
  reducer.finish();
}

TEST_F(ReducerTest, FinishZeroesAndReducesWhatNeverCame) {
  Reducer reducer = make();
  for (std::size_t i = 0; i < 4; ++i) std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), 7.0F);
  reducer.mark_ready(1);
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 2, 3));
  EXPECT_THAT(record->buckets(), ElementsAre(0, 1, 2));
  EXPECT_EQ(record->completed, 3U);
  EXPECT_THAT(floats(reducer.slot(1)), testing::Each(7.0F));
  for (const std::size_t i : {0, 2, 3}) EXPECT_THAT(floats(reducer.slot(i)), testing::Each(0.0F));
}

TEST_F(ReducerTest, APassWithoutAnyGradientIsReducedTheSame) {
  Reducer reducer = make();
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(record->buckets(), ElementsAre(0, 1, 2));
}

TEST_F(ReducerTest, NamesAGradientThatComesTwiceAndTheNextPassIsClean) {
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
  Reducer reducer = make([&](ProcessGroup& group, const BucketView& bucket) {
    seen.push_back(bucket.index);
    auto* values = static_cast<float*>(bucket.data);
    for (std::size_t i = 0; i < bucket.count; ++i) values[i] *= 0.5F;
    return group.all_reduce_async(bucket.data, bucket.count, bucket.dtype, ReduceOp::kSum, {.device = bucket.device});
  });
  for (std::size_t i = 0; i < 4; ++i) {
    std::fill(floats(reducer.slot(i)).begin(), floats(reducer.slot(i)).end(), static_cast<float>(i));
    reducer.mark_ready(i);
  }
  reducer.finish();
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_THAT(floats(reducer.slot(i)), testing::Each(static_cast<float>(i) / 2));
  for (const Operation& operation : record->operations) EXPECT_EQ(operation.signature.op, ReduceOp::kSum);
}

TEST_F(ReducerTest, AFailedStartEndsThePass) {
  Reducer reducer = make();
  record->fail_starting_at = 1;
  reducer.mark_ready(3);
  reducer.mark_ready(2);
  EXPECT_THROW(reducer.mark_ready(1), PeerLost);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_EQ(record->completed, 1U) << "what was started may still write into the buckets";
  record->fail_starting_at = SIZE_MAX;
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  EXPECT_TRUE(reducer.finish().empty());
  EXPECT_THAT(record->buckets(), ElementsAre(0, 0, 1, 2));
}

TEST_F(ReducerTest, AFailureWhileFinishingEndsThePass) {
  Reducer reducer = make();
  record->fail_waiting_for = 2;
  reducer.mark_ready(1);
  EXPECT_THROW(reducer.finish(), PeerLost);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_EQ(record->completed, 3U) << "the others were waited for";
  record->fail_waiting_for = 0;
  EXPECT_THAT(reducer.finish(), ElementsAre(0, 1, 2, 3));
}

TEST_F(ReducerTest, AnAbandonedPassIsWaitedForAndForgotten) {
  Reducer reducer = make();
  for (const std::size_t i : {3, 2}) reducer.mark_ready(i);
  reducer.abandon_pass();
  EXPECT_EQ(record->completed, 1U);
  EXPECT_FALSE(reducer.in_pass());
  EXPECT_FALSE(reducer.is_ready(3));
  for (const std::size_t i : {3, 2, 1, 0}) reducer.mark_ready(i);
  EXPECT_TRUE(reducer.finish().empty());
}

TEST_F(ReducerTest, DestructionWaitsForWhatIsUnderWay) {
  {
    Reducer reducer = make();
    reducer.mark_ready(3);
    EXPECT_EQ(record->completed, 0U);
  }
  EXPECT_EQ(record->completed, 1U);
  Reducer reducer = make();
  record->fail_waiting_for = 2;
  reducer.mark_ready(3);  // its destructor must not throw
}

TEST_F(ReducerTest, APassAllocatesNothing) {
  Reducer reducer = make();
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
  EXPECT_EQ(record->operations.size(), 306U);
}

TEST(Reducer, OverAWorldOfOneLeavesGradientsAsTheyAre) {
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
