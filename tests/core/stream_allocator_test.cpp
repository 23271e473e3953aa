// The statistics of a GPU's allocator, on top of a simulated pool.
#include "src/core/memory/stream_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The pool of a device of `size` bytes. Keeps freed blocks and reuses them if they are large enough, like the driver's
// pool; merges several blocks only when it has settled.
class MadeUpPool : public MemoryPool {
 public:
  explicit MadeUpPool(std::size_t size) : size_(size) {}

  std::byte* take(std::size_t bytes) override {
    ++takes;
    return cached_or_made(bytes);
  }
  std::byte* take_apart(std::size_t bytes) override {
    ++takes_apart;
    return cached_or_made(bytes);
  }
  std::byte* cached_or_made(std::size_t bytes) {
    for (auto block = cached_.begin(); block != cached_.end(); ++block)
      if (block->size() >= bytes) {
        used_.splice(used_.end(), cached_, block);
        return used_.back().data();
      }
    if (bytes > free_on_device()) return nullptr;
    held_ += bytes;
    return used_.emplace_back(bytes).data();
  }
  void give_back(std::byte* data, std::size_t) noexcept override {
    ++gives_back;
    for (auto block = used_.begin(); block != used_.end(); ++block)
      if (block->data() == data) return cached_.splice(cached_.end(), used_, block);
  }
  std::byte* take_on(Stream& stream, std::size_t bytes) override {
    taken_on.push_back(&stream);
    return cached_or_made(bytes);
  }
  void give_back_on(Stream& stream, std::byte* data, std::size_t bytes) noexcept override {
    given_back_on.push_back(&stream);
    give_back(data, bytes);
  }
  void settle(std::size_t keep) override {
    ++settles;
    for (; held_ > keep && !cached_.empty(); cached_.pop_front()) held_ -= cached_.front().size();
  }
  std::size_t held() const override { return ++questions, held_; }
  std::size_t free_on_device() const override { return size_ - held_ - of_others; }
  std::size_t size_of_device() const override { return size_; }

  std::size_t of_others = 0;
  int takes = 0, takes_apart = 0, gives_back = 0, settles = 0;
  std::vector<Stream*> taken_on, given_back_on;
  mutable int questions = 0;

 private:
  std::size_t size_, held_ = 0;
  std::list<std::vector<std::byte>> used_, cached_;
};

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(StreamAllocator, ServesWhatWasFreedWithoutAskingTheSystem) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  { const Buffer first = allocator.allocate(kMiB), second = allocator.allocate(2 * kMiB); }
  const AllocatorStats warm = allocator.stats();
  EXPECT_EQ(warm.system_allocations, 2u);
  EXPECT_EQ(warm.bytes_in_use, 0u);
  EXPECT_EQ(warm.bytes_held, 3 * kMiB);
  for (int step = 0; step < 10; ++step) {
    const Buffer again = allocator.allocate(kMiB);
    EXPECT_EQ(allocator.stats().bytes_in_use, kMiB);
  }
  EXPECT_EQ(allocator.stats().system_allocations, 2u);
  EXPECT_EQ(allocator.stats().cache_hits, 10u);
  EXPECT_EQ(pool.takes, 2);
  EXPECT_EQ(pool.gives_back, 0);
  EXPECT_EQ(pool.questions, 2) << "queried only on misses";
}

TEST(StreamAllocator, WhatIsKeptMakesRoomForOtherSizes) {
  MadeUpPool pool(4 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  { const Buffer one = allocator.allocate(kMiB), three = allocator.allocate(3 * kMiB); }
  EXPECT_EQ(pool.gives_back, 0);
  const Buffer two = allocator.allocate(2 * kMiB);
  EXPECT_EQ(pool.gives_back, 2);
  EXPECT_EQ(allocator.stats().bytes_in_use, 2 * kMiB);
}

// The driver merges blocks only after their users have finished.
TEST(StreamAllocator, ExhaustionWaitsForWhatWasFreed) {
  MadeUpPool pool(4 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  { const Buffer one = allocator.allocate(kMiB), three = allocator.allocate(3 * kMiB); }
  const Buffer four = allocator.allocate(4 * kMiB);
  EXPECT_EQ(pool.settles, 1);
  EXPECT_EQ(allocator.stats().bytes_held, 4 * kMiB);
}

TEST(StreamAllocator, WhatIsKeptIsBoundedByWhatWasInUse) {
  constexpr std::size_t kLargest = 100 * 4096;
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  for (std::size_t bytes = kLargest; bytes > 0; bytes -= 4096) allocator.allocate(bytes);
  EXPECT_LE(allocator.stats().bytes_held, 8 * kLargest) << "of 50 that all sizes are";
  const auto step = [&] {
    const Buffer x = allocator.allocate(4096), y = allocator.allocate(3 * 4096), z = allocator.allocate(50 * 4096);
  };
  step();
  const int takes = pool.takes, gives_back = pool.gives_back;
  for (int i = 0; i < 10; ++i) step();
  EXPECT_EQ(pool.takes, takes) << "a step that repeats itself requests nothing";
  EXPECT_EQ(pool.gives_back, gives_back);
  EXPECT_EQ(pool.settles, 0) << "and nobody waited";
}

TEST(StreamAllocator, GivesWhatItKeepsBackWhenItIsTold) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  const Buffer kept = allocator.allocate(kMiB);
  { const Buffer three = allocator.allocate(3 * kMiB); }
  allocator.begin_capture();
  allocator.empty_cache();
  EXPECT_EQ(pool.settles, 0) << "a graph is recorded";
  allocator.end_capture();
  allocator.empty_cache();
  EXPECT_EQ(pool.settles, 1);
  EXPECT_EQ(allocator.stats().bytes_held, kMiB);
  EXPECT_EQ(allocator.stats().bytes_in_use, kMiB);
}

TEST(StreamAllocator, WhatIsKeptCountsAgainstALimit) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {MemoryPolicy::Kind::kLimit, 4 * kMiB});
  { const Buffer three = allocator.allocate(3 * kMiB); }
  const Buffer two = allocator.allocate(2 * kMiB);
  EXPECT_EQ(pool.gives_back, 1);
  EXPECT_LE(allocator.stats().bytes_held, 4 * kMiB);
}

// CUDA may report another error than exhausted memory.
TEST(StreamAllocator, ThePoolIsNotAskedForMoreThanTheDeviceHas) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  EXPECT_THAT(message_of([&] { allocator.allocate(std::size_t{1} << 50); }),
              HasSubstr("out of memory: 1073741824.0 MiB requested"));
  allocator.begin_capture();
  EXPECT_THAT(message_of([&] { allocator.allocate(65 * kMiB); }), HasSubstr("out of memory"));
  allocator.end_capture();
  EXPECT_EQ(pool.takes + pool.takes_apart, 0);
}

// During a capture nothing can be returned: neither to make room for other sizes, nor to stay within the limit.
TEST(StreamAllocator, ACaptureBeginsWithNothingKept) {
  MadeUpPool small(4 * kMiB), large(64 * kMiB);
  StreamAllocator grows(cpu_device(), small, {}), limited(cpu_device(), large, {MemoryPolicy::Kind::kLimit, 4 * kMiB});
  { const Buffer four = grows.allocate(4 * kMiB), other = limited.allocate(3 * kMiB); }
  grows.begin_capture();
  EXPECT_NO_THROW(grows.allocate(2 * kMiB));
  grows.end_capture();
  limited.begin_capture();
  const int gives_back = large.gives_back;
  Buffer theirs;
  const Buffer ours = limited.allocate(2 * kMiB);
  std::thread([&] { theirs = limited.allocate(kMiB); }).join();
  EXPECT_EQ(large.takes_apart, 2);
  EXPECT_EQ(large.gives_back, gives_back);
  EXPECT_LE(limited.stats().bytes_held, 4 * kMiB);
  limited.end_capture();
}

class OtherStream : public Stream {
 public:
  void synchronize() override {}
};

TEST(StreamAllocator, WorkspacesOnOtherStreamsAreKeptInTheirOwnOrder) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  OtherStream one, two;
  const std::byte* const block = allocator.allocate_on(one, kMiB).data();
  EXPECT_NE(allocator.allocate(kMiB).data(), block)
      << "the default stream does not know when the other one is done with it";
  EXPECT_NE(allocator.allocate_on(two, kMiB).data(), block);
  EXPECT_EQ(allocator.allocate_on(one, kMiB).data(), block);
  EXPECT_EQ(allocator.stats().bytes_in_use, 0U);
  { const Buffer of_default = allocator.allocate_on(cpu_device().default_stream(), kMiB); }
  EXPECT_THAT(pool.taken_on, ElementsAre(&one, &two));
  EXPECT_EQ(pool.takes, 1);
  EXPECT_EQ(pool.gives_back, 0);
  allocator.forget(one);
  EXPECT_THAT(pool.given_back_on, ElementsAre(&one)) << "before the stream goes, in its order";
  EXPECT_EQ(pool.gives_back, 1);
}

TEST(StreamAllocator, WhatOtherStreamsKeepMakesRoom) {
  MadeUpPool pool(4 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  OtherStream other;
  { const Buffer three = allocator.allocate_on(other, 3 * kMiB); }
  const Buffer four = allocator.allocate(4 * kMiB);
  EXPECT_THAT(pool.given_back_on, ElementsAre(&other));
}

// Memory that was freed during a capture stays with the graph, which may be destroyed after the stream.
TEST(StreamAllocator, AGraphGivesNothingBackOnAStreamThatHasGone) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  {
    OtherStream other;
    Buffer workspace = allocator.allocate_on(other, kMiB);
    allocator.begin_capture();
    workspace = {};
    std::shared_ptr<void> graph = allocator.end_capture();
    allocator.forget(other);
    graph = nullptr;
  }
  allocator.empty_cache();
  EXPECT_THAT(pool.given_back_on, ::testing::IsEmpty());
  EXPECT_EQ(pool.gives_back, 1);
}

// Two streams of a graph run concurrently.
TEST(StreamAllocator, ACapturesStreamsDoNotShareBlocks) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  OtherStream other;
  { const Buffer before = allocator.allocate_on(other, kMiB); }
  allocator.begin_capture();
  EXPECT_THAT(pool.given_back_on, ElementsAre(&other));
  const std::byte* const block = allocator.allocate_on(other, kMiB).data();
  EXPECT_NE(allocator.allocate(kMiB).data(), block);
  EXPECT_EQ(allocator.allocate_on(other, kMiB).data(), block);
  EXPECT_THAT(pool.taken_on, ElementsAre(&other)) << "before the capture";
  EXPECT_EQ(pool.takes_apart, 2);
  allocator.end_capture();
  EXPECT_EQ(allocator.stats().bytes_in_use, 0U);
}

TEST(StreamAllocator, AWindowKeepsItsBlock) {
  MadeUpPool pool(kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  Buffer window;
  { window = allocator.allocate(4096).window(1024, 16); }
  EXPECT_EQ(allocator.stats().bytes_in_use, 4096u);
  window = {};
  EXPECT_EQ(allocator.stats().bytes_in_use, 0u);
}

TEST(StreamAllocator, NothingIsABlockToo) {
  MadeUpPool pool(kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  const Buffer empty = allocator.allocate(0);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.bytes(), 0u);
}

TEST(StreamAllocator, ExhaustionSaysWhatWasAskedAndWhoHoldsWhat) {
  MadeUpPool pool(16 * kMiB);
  pool.of_others = 8 * kMiB;
  StreamAllocator allocator(cpu_device(), pool, {});
  const Buffer held = allocator.allocate(6 * kMiB);
  const std::string said = message_of([&] { allocator.allocate(3 * kMiB); });
  EXPECT_THAT(said, HasSubstr("out of memory: 3.0 MiB requested; this process uses 6.0 MiB and holds 6.0; 2.0 of the "
                              "device's 16.0 MiB are free"));
  EXPECT_NO_THROW(allocator.allocate(2 * kMiB)) << "an allocation that failed must leave the accounts as they were";
}

TEST(StreamAllocator, ALimitEndsGrowthBeforeTheDeviceDoes) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {MemoryPolicy::Kind::kLimit, 4 * kMiB});
  const Buffer held = allocator.allocate(3 * kMiB);
  const int takes = pool.takes;
  EXPECT_THAT(message_of([&] { allocator.allocate(2 * kMiB); }), HasSubstr("of at most 4.0"));
  EXPECT_THAT(message_of([&] { allocator.allocate(~std::size_t{0}); }), HasSubstr("out of memory"));
  EXPECT_EQ(pool.takes, takes) << "the pool received a request that the limit forbids";
  EXPECT_NO_THROW(allocator.allocate(kMiB));
}

TEST(StreamAllocator, AllAtOnceAsksTheSystemOnce) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {MemoryPolicy::Kind::kAll, 32 * kMiB});
  EXPECT_EQ(allocator.stats().bytes_held, 32 * kMiB);
  const Buffer part = allocator.allocate(32 * kMiB);
  EXPECT_EQ(allocator.stats().system_allocations, 1u);
  EXPECT_THROW(allocator.allocate(1), Error);
}

TEST(StreamAllocator, AllThatIsNotThereIsAnErrorAtTheStart) {
  MadeUpPool pool(16 * kMiB);
  pool.of_others = 8 * kMiB;
  const std::string said = message_of([&] {
    StreamAllocator(cpu_device(), pool, {MemoryPolicy::Kind::kAll, 12 * kMiB});
  });
  EXPECT_THAT(said, HasSubstr("12 MiB were to be allocated at the start, but only 8 of its 16 MiB are free"));
  const int takes = pool.takes;
  const std::string more = message_of([&] {
    StreamAllocator(cpu_device(), pool, {MemoryPolicy::Kind::kAll, 17 * kMiB});
  });
  EXPECT_THAT(more, HasSubstr("17 MiB were to be allocated at the start, but only 8 of its 16 MiB are free"));
  EXPECT_EQ(pool.takes, takes) << "the pool received a request for more than the device has";
}

TEST(MemoryPolicy, ReadsItsForms) {
  using Kind = MemoryPolicy::Kind;
  EXPECT_EQ(parse_memory_policy("X", "grow"), (MemoryPolicy{Kind::kGrow, 0}));
  EXPECT_EQ(parse_memory_policy("X", "all"), (MemoryPolicy{Kind::kAll, 0}));
  EXPECT_EQ(parse_memory_policy("X", "8G"), (MemoryPolicy{Kind::kLimit, std::size_t{8} << 30}));
  EXPECT_EQ(parse_memory_policy("X", "1000000"), (MemoryPolicy{Kind::kLimit, 1'000'000}));
  EXPECT_EQ(parse_memory_policy("X", "all:512M"), (MemoryPolicy{Kind::kAll, 512 * kMiB}));
}

TEST(MemoryPolicy, RefusesTheRestAndNamesItsSource) {
  for (const char* text :
       {"", "0", "-1", "8g", "8GB", "all:", "all:0", "x", "99999999999999999999", "18446744073709551615K"})
    EXPECT_THAT(message_of([&] { parse_memory_policy("LOCKSTEP_GPU_MEMORY", text); }),
                HasSubstr("LOCKSTEP_GPU_MEMORY: '"))
        << text;
}

// While a stream is captured, the pool's order would become part of the graph.
TEST(StreamAllocator, DuringACaptureNothingIsTakenOrGivenBackInTheStreamsOrder) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  Buffer older = allocator.allocate(kMiB), other_size = allocator.allocate(3 * kMiB);
  allocator.begin_capture();
  EXPECT_THAT(message_of([&] { allocator.begin_capture(); }), HasSubstr("one at a time"));
  const std::byte* const freed = older.data();
  older = {};
  Buffer first = allocator.allocate(kMiB);
  EXPECT_NE(first.data(), freed) << "the graph may use the older block";
  const std::byte* const block = first.data();
  first = {};
  Buffer second = allocator.allocate(kMiB);
  EXPECT_EQ(second.data(), block) << "in the order of the calls it is free again";
  std::shared_ptr<void> memory = allocator.end_capture();
  EXPECT_EQ(pool.takes, 2);
  EXPECT_EQ(pool.takes_apart, 1);
  EXPECT_EQ(pool.gives_back, 0);

  memory = nullptr;
  EXPECT_EQ(allocator.stats().bytes_in_use, 5 * kMiB) << "a buffer of the capture lives";
  second = {};
  EXPECT_EQ(allocator.stats().bytes_in_use, 3 * kMiB);
}

TEST(StreamAllocator, AnotherThreadsMemoryIsNotTheGraphs) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {});
  allocator.begin_capture();
  Buffer theirs;
  std::thread([&] { theirs = allocator.allocate(kMiB); }).join();
  EXPECT_EQ(pool.takes_apart, 1);
  std::shared_ptr<void> memory = allocator.end_capture();
  memory = nullptr;
  EXPECT_EQ(allocator.stats().bytes_in_use, kMiB);
  theirs = {};
  EXPECT_EQ(allocator.stats().bytes_in_use, 0u);
}

TEST(StreamAllocator, ALimitHoldsDuringACapture) {
  MadeUpPool pool(64 * kMiB);
  StreamAllocator allocator(cpu_device(), pool, {MemoryPolicy::Kind::kLimit, 2 * kMiB});
  const Buffer one = allocator.allocate(kMiB);
  allocator.begin_capture();
  EXPECT_THAT(message_of([&] { allocator.allocate(2 * kMiB); }), HasSubstr("out of memory: 2.0 MiB requested"));
  allocator.end_capture();
}

}  // namespace
}  // namespace lockstep
