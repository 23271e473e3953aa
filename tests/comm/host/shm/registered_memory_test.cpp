// The location that a rank publishes for its buffer is checked before any peer accesses it.
#include "src/comm/host/shm/registered_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "src/comm/host/machine/thread_memory_provider.h"

namespace lockstep::host {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

TEST(RegisteredMemory, APeersBufferLiesInsideItsPart) {
  constexpr std::size_t kBytes = 10'000;
  const std::size_t stride = RegisteredMemory::stride_of(kBytes);
  const auto memory = std::make_shared<RegisteredMemory>(0);
  const Buffer own = RegisteredMemory::add(memory, map_private_segment(2 * stride), kBytes);
  const RegisteredMemory::Found found = memory->find(own.data() + 16, 100);
  ASSERT_EQ(found.location.offset, 16u);
  EXPECT_EQ(found.at(0, 16, 4, 96), own.data() + 20);
  EXPECT_EQ(found.at(1, kBytes - 100, 0, 100), own.data() + stride + kBytes - 100) << "its last bytes";
  EXPECT_EQ(found.at(1, kBytes, 0, 0), own.data() + stride + kBytes);
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  struct {
    std::uint64_t offset;
    std::size_t skip, bytes;
  } const outside[] = {{kBytes - 99, 0, 100}, {kBytes - 100, 1, 100}, {kBytes + 1, 0, 0},
                       {kMost, 0, 100},       {kMost - 50, 51, 100},  {16, kMost, 1}};
  for (const auto& [offset, skip, bytes] : outside)
    EXPECT_THAT(([&, o = offset, s = skip, b = bytes] { found.at(1, o, s, b); }),
                Throws<std::runtime_error>(
                    Property(&std::runtime_error::what,
                             AllOf(HasSubstr("rank 1 published a range"), HasSubstr("registered memory of 10000")))));
}

}  // namespace
}  // namespace lockstep::host
