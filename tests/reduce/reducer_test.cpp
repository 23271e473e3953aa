// The reducer over a backend that writes down what it is asked for.
#include "lockstep/reduce/reducer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "lockstep/core/error.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
}  // namespace

// Counts what is allocated while a test asks for it.
void* operator new(std::size_t bytes) {
  if (counting.load()) ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

// Completes at once; an "average" halves the data, so that a test sees who was reduced, and how often.
class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(std::vector<Operation>& calls) : calls_(calls) {}
  std::string_view name() const override { return "recording"; }
  std::string_view transport() const override { return "none"; }
  void run(const Operation& operation) override {
    if (fail_at == operation.purpose.index) throw PeerLost("rank 1 is gone");
    if (calls_.size() < calls_.capacity()) calls_.push_back(operation);
    auto* values = static_cast<float*>(operation.receive);
    for (std::size_t i = 0; i < operation.signature.count; ++i) values[i] /= 2;
  }
  Work start(const Operation& operation) override {
    run(operation);
    return Work();
  }
  Buffer allocate(std::size_t bytes) override {
    Buffer memory = cpu_device().allocate(bytes);
    std::memset(memory.data(), 0, bytes);
    return memory;
  }
  void abort(const std::string&) override {}
  void leave() noexcept override {}
  TransportCounters counters() const override { return {}; }

  int fail_at = -2;

 private:
  std::vector<Operation>& calls_;
};

class ReducerTest : public testing::Test {
 protected:
  ReducerTest() {
    calls.reserve(1000);
    auto owned = std::make_unique<RecordingBackend>(calls);
    backend = owned.get();
    group = ProcessGroup::wrap({0, 2, 0, 2}, std::move(owned));
  }
  // Six gradients of 64 floats, two a bucket: {5, 4}, {3, 2}, {1, 0}.
  std::unique_ptr<Reducer> make(CommHook hook = {}) {
    std::vector<GradientInfo> gradients;
    for (int i = 0; i < 6; ++i) gradients.push_back({"g" + std::to_string(i), 64});
    return std::make_unique<Reducer>(group, gradients, ReducerOptions{{512, 512}, std::move(hook)});
  }
  static float* values(const Reducer& reducer, std::size_t i) { return reinterpret_cast<float*>(reducer.slot(i).data()); }
  std::vector<int> launched() const {
    std::vector<int> buckets;
    for (const Operation& call : calls) buckets.push_back(call.purpose.index);
    return buckets;
  }

  std::vector<Operation> calls;
  RecordingBackend* backend;
  std::shared_ptr<ProcessGroup> group;
};

TEST_F(ReducerTest, BucketsLeaveInOrderWhateverTheOrderOfArrival) {
  const auto reducer = make();
  for (const std::size_t i : {0u, 1u, 3u, 2u}) reducer->mark_ready(i);  // buckets 2 and 1 are full, 0 is not
  EXPECT_TRUE(launched().empty());
  EXPECT_TRUE(reducer->in_pass());
  reducer->mark_ready(4);
  EXPECT_TRUE(launched().empty());
  reducer->mark_ready(5);
  EXPECT_EQ(launched(), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(reducer->finish().empty());
  EXPECT_FALSE(reducer->in_pass());
}

TEST_F(ReducerTest, EachBucketLeavesAsSoonAsItIsFull) {
  const auto reducer = make();
  for (std::size_t i = 6; i-- > 0;) {
    reducer->mark_ready(i);
    EXPECT_EQ(launched().size(), (6 - i) / 2);
  }
  reducer->finish();
  for (const Operation& call : calls) {
    EXPECT_EQ(call.signature.kind, OperationKind::kAllReduce);
    EXPECT_EQ(call.signature.op, ReduceOp::kAvg);
    EXPECT_EQ(call.signature.count, 128u);
    EXPECT_STREQ(call.purpose.name, "bucket");
  }
  const auto times = reducer->last_pass();
  EXPECT_LE(times[0].ready, times[0].launched);
  EXPECT_LE(times[0].launched, times[2].launched);
}

TEST_F(ReducerTest, GradientsAreReducedInPlace) {
  const auto reducer = make();
  for (std::size_t i = 0; i < 6; ++i) {
    values(*reducer, i)[63] = static_cast<float>(i);
    reducer->mark_ready(i);
  }
  reducer->finish();
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(values(*reducer, i)[63], static_cast<float>(i) / 2);
  EXPECT_EQ(calls[2].receive, values(*reducer, 1)) << "the bucket itself is reduced: no copy";
}

TEST_F(ReducerTest, GradientsThatNeverCameCountAsZeroAndAreNamed) {
  const auto reducer = make();
  for (std::size_t i = 0; i < 6; ++i) values(*reducer, i)[0] = 8;
  for (const std::size_t i : {5u, 3u, 2u, 0u}) reducer->mark_ready(i);
  EXPECT_EQ(reducer->finish(), (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(launched(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(values(*reducer, 4)[0], 0);
  EXPECT_EQ(values(*reducer, 5)[0], 4);
  EXPECT_EQ(reducer->finish().size(), 6u) << "a pass that reached nothing is a pass";
  EXPECT_EQ(launched().size(), 6u);
}

TEST_F(ReducerTest, ASecondMarkIsNamedAndTheNextPassIsClean) {
  const auto reducer = make();
  reducer->mark_ready(3);
  try {
    reducer->mark_ready(3);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'g3' was marked ready twice"), std::string::npos) << error.what();
  }
  for (std::size_t i = 0; i < 6; ++i) reducer->mark_ready(i);
  EXPECT_TRUE(reducer->finish().empty());
}

TEST_F(ReducerTest, AFailedCollectiveEndsThePass) {
  const auto reducer = make();
  backend->fail_at = 1;
  for (const std::size_t i : {5u, 4u, 3u}) reducer->mark_ready(i);
  EXPECT_THROW(reducer->mark_ready(2), PeerLost);
  EXPECT_FALSE(reducer->in_pass());
}

TEST_F(ReducerTest, ACommHookReplacesTheAverage) {
  std::vector<int> seen;
  const auto reducer = make([&](ProcessGroup&, const BucketView& bucket) {
    seen.push_back(bucket.index);
    static_cast<float*>(bucket.data)[0] += 100;
    return Work();
  });
  for (std::size_t i = 0; i < 6; ++i) reducer->mark_ready(i);
  reducer->finish();
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(calls.empty());
  EXPECT_EQ(values(*reducer, 5)[0], 100);
}

TEST_F(ReducerTest, APassAllocatesNothing) {
  const auto reducer = make();
  const auto pass = [&] {
    for (std::size_t i = 6; i-- > 0;) reducer->mark_ready(i);
    reducer->finish();
  };
  pass();
  pass();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 10; ++i) pass();
  counting = false;
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace lockstep
