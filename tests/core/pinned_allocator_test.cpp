// Pinned memory of a simulated device: what is cached, what is allocated, and how uploads use it.
#include "src/core/memory/pinned_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/core/error.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Heap : public PinnedSource {
 public:
  std::byte* take(std::size_t bytes) override {
    ++takes;
    return bytes > most ? nullptr : static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
  }
  void give_back(std::byte* block) noexcept override {
    ++gives_back;
    std::free(block);
  }
  std::size_t most = std::size_t{64} << 20;
  int takes = 0, gives_back = 0;
};

TEST(PinnedAllocator, KeepsBlocksAndHandsThemOutWhereTheyFit) {
  Heap heap;
  {
    PinnedAllocator allocator(cpu_device(), heap);
    const std::byte* first = nullptr;
    {
      const Buffer buffer = allocator.allocate(40'000);
      first = buffer.data();
      EXPECT_EQ(buffer.bytes(), 40'000u);
    }
    EXPECT_EQ(allocator.allocate(40'000).data(), first);
    EXPECT_EQ(allocator.allocate(33'000).data(), first) << "a quarter too large at most";
    EXPECT_EQ(heap.takes, 1);
    const Buffer smaller = allocator.allocate(20'000), larger = allocator.allocate(50'000),
                 one = allocator.allocate(40'000);
    EXPECT_EQ(one.data(), first);
    EXPECT_EQ(heap.takes, 3);
    EXPECT_TRUE(allocator.allocate(0));
  }
  EXPECT_EQ(heap.gives_back, heap.takes) << "the system gets them back in the end";
}

TEST(PinnedAllocator, SaysWhatIsNotToBeHad) {
  Heap heap;
  heap.most = 1 << 20;
  PinnedAllocator allocator(cpu_device(), heap);
  EXPECT_THAT(message_of([&] { allocator.allocate(std::size_t{3} << 20); }),
              AllOf(HasSubstr("cpu: 3.0 MiB of pinned"), HasSubstr("smaller batch")));
}

TEST(PinnedAllocator, OfTheCpuIsPlainMemory) {
  const Buffer buffer = cpu_device().allocate_pinned(100);
  EXPECT_EQ(buffer.device(), &cpu_device());
  EXPECT_EQ(buffer.bytes(), 100u);
}

TEST(CpuDevice, HasNoGraphs) {
  EXPECT_THAT(message_of([] { cpu_device().begin_capture(cpu_device().default_stream()); }),
              HasSubstr("nothing to record as a graph"));
  EXPECT_FALSE(cpu_device().default_stream().is_capturing());
}

}  // namespace
}  // namespace lockstep
