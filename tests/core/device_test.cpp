// The CPU as a device: its caching allocator, buffers and copies.
#include "lockstep/core/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "lockstep/core/error.h"
#include "src/core/device/cpu_device.h"

namespace lockstep {
namespace {

TEST(Allocator, AlignsAndGivesWhatWasAskedFor) {
  CachingAllocator allocator(cpu_device());
  std::vector<Buffer> held;
  for (std::size_t bytes = 0; bytes < 3000; bytes += 13) {
    held.push_back(allocator.allocate(bytes));
    EXPECT_EQ(held.back().bytes(), bytes);
    EXPECT_EQ(held.back().device(), &cpu_device());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.back().data()) % 64, 0U) << bytes;
    if (bytes != 0) std::memset(held.back().data(), static_cast<int>(bytes % 251), bytes);
  }
  // No two overlap: each still holds its own pattern.
  for (const Buffer& buffer : held)
    for (std::size_t i = 0; i < buffer.bytes(); ++i)
      ASSERT_EQ(buffer.data()[i], static_cast<std::byte>(buffer.bytes() % 251)) << buffer.bytes();
}

TEST(Allocator, HandsFreedBlocksOutAgain) {
  CachingAllocator allocator(cpu_device());
  std::byte* first = nullptr;
  {
    const Buffer buffer = allocator.allocate(1000);
    first = buffer.data();
    EXPECT_GE(allocator.stats().bytes_in_use, 1000U);
  }
  EXPECT_EQ(allocator.stats().bytes_in_use, 0U);
  EXPECT_GE(allocator.stats().bytes_held, 1000U);
  const Buffer again = allocator.allocate(990);  // the same size class
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(allocator.stats().system_allocations, 1U);
  EXPECT_EQ(allocator.stats().cache_hits, 1U);
}

TEST(Allocator, GivesWhatItKeepsBackWhenItIsTold) {
  CachingAllocator allocator(cpu_device());
  const Buffer kept = allocator.allocate(64);
  std::memset(kept.data(), 7, 64);
  { const Buffer large = allocator.allocate(3 << 20), small = allocator.allocate(80); }
  EXPECT_GE(allocator.stats().bytes_held, 64U + 80 + (3 << 20));
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().bytes_held, 64U);
  EXPECT_EQ(allocator.stats().bytes_in_use, 64U);
  EXPECT_EQ(kept.data()[63], std::byte{7});
  const Buffer again = allocator.allocate(3 << 20);
  EXPECT_EQ(allocator.stats().system_allocations, 4U);
}

TEST(Allocator, WastesAQuarterAtMost) {
  for (const std::size_t bytes : {65U, 80U, 81U, 97U, 129U, 1025U, 5000U, 70001U, 1048577U}) {
    CachingAllocator allocator(cpu_device());
    const Buffer buffer = allocator.allocate(bytes);
    EXPECT_GE(allocator.stats().bytes_in_use, bytes);
    EXPECT_LE(allocator.stats().bytes_in_use, bytes + bytes / 4) << bytes;
  }
}

TEST(Allocator, ServesThreads) {
  CachingAllocator allocator(cpu_device());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&allocator, t] {
      for (int i = 0; i < 200; ++i) {
        const std::size_t bytes = 64 + (i * 37) % 500;
        const Buffer buffer = allocator.allocate(bytes);
        std::memset(buffer.data(), t, bytes);
        for (std::size_t k = 0; k < bytes; ++k) ASSERT_EQ(buffer.data()[k], static_cast<std::byte>(t));
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().bytes_in_use, 0U);
  EXPECT_EQ(allocator.stats().system_allocations + allocator.stats().cache_hits, 800U);
}

TEST(Buffer, AWindowKeepsTheMemory) {
  CachingAllocator allocator(cpu_device());
  Buffer window;
  {
    const Buffer whole = allocator.allocate(256);
    std::memset(whole.data(), 7, 256);
    window = whole.window(64, 32);
  }
  EXPECT_EQ(window.bytes(), 32U);
  EXPECT_EQ(window.data()[31], std::byte{7});
  EXPECT_GT(allocator.stats().bytes_in_use, 0U);
  window = Buffer();
  EXPECT_EQ(allocator.stats().bytes_in_use, 0U);
}

TEST(CpuDevice, CopiesAndIsAlwaysDone) {
  Device& device = cpu_device();
  EXPECT_EQ(device.kind(), DeviceKind::kCpu);
  EXPECT_EQ(device.name(), "cpu");
  EXPECT_EQ(&local_device(3), &device);
  const auto stream = device.new_stream();
  const int from[3] = {1, 2, 3};
  int to[3] = {};
  device.copy(to, from, sizeof(from), *stream);
  EXPECT_EQ(std::memcmp(from, to, sizeof(from)), 0);
  device.copy(nullptr, nullptr, 0, *stream);
  const auto event = device.new_event();
  event->record(*stream);
  EXPECT_TRUE(event->done());
}

TEST(KernelTable, HasEveryEntry) {
  // The table is a struct of function pointers, none of which may be null, followed by the families.
  const auto check = [](const KernelTable& table) {
    std::vector<void*> entries((sizeof(KernelTable) - sizeof(KernelFamilies)) / sizeof(void*));
    std::memcpy(entries.data(), &table, entries.size() * sizeof(void*));
    for (std::size_t i = 0; i < entries.size(); ++i) EXPECT_NE(entries[i], nullptr) << "entry " << i;
  };
  check(reference_kernels());
  check(cpu_device().kernels());
}

struct Doubling {
  static constexpr const char* kFamily = "doubling";
  int (*twice)(int);
};

TEST(KernelFamilies, AreFoundByTheirNameOrMissedByIt) {
  static constexpr Doubling kDoubling = {.twice = [](int value) { return 2 * value; }};
  KernelTable table = reference_kernels();
  table.families.set(kDoubling);
  const KernelTable copy = table;
  EXPECT_EQ(copy.families.get<Doubling>().twice(21), 42);
  EXPECT_THAT(([] { reference_kernels().families.get<Doubling>(); }),
              ::testing::ThrowsMessage<std::logic_error>(::testing::HasSubstr("no family 'doubling'")));
}

TEST(Check, NamesConditionAndValues) {
  const int two = 2;
  try {
    LOCKSTEP_CHECK(two == 3, "two is {}", two);
    FAIL() << "did not throw";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("two == 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("two is 2"), std::string::npos) << error.what();
  }
}

TEST(RunMain, TurnsExceptionsIntoExitCodes) {
  char name[] = "program";
  char* arguments[] = {name, nullptr};
  EXPECT_EQ(run_main(
                "program", [](int, char**) { return 5; }, 1, arguments),
            5);
  EXPECT_EQ(run_main(
                "program", [](int, char**) -> int { throw PeerLost("rank 1 died"); }, 1, arguments),
            kPeerLostExitCode);
  EXPECT_EQ(run_main(
                "program", [](int, char**) -> int { throw InvalidArgument("--x"); }, 1, arguments),
            2);
  EXPECT_EQ(run_main(
                "program", [](int, char**) -> int { throw std::runtime_error("other"); }, 1, arguments),
            1);
}

}  // namespace
}  // namespace lockstep
