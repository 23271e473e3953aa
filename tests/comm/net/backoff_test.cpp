#include "src/comm/net/backoff.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace lockstep {
namespace {

TEST(YieldingWait, EndsWithItsConditionOrItsTime) {
  YieldingWait yields;
  EXPECT_TRUE(yields.until([] { return true; }));
  EXPECT_FALSE(yields.until([] { return false; }));
  EXPECT_TRUE(yields.until([] { return true; }, YieldingWait::Clock::time_point{})) << "the last look counts";
}

// On a core with other work, a yield lasts until the system preempts that work.
TEST(YieldingWait, SleepIsDueOnceOtherWorkHasTheCore) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  if (::sched_setaffinity(0, sizeof(one), &one) != 0) GTEST_SKIP() << "this process may not choose its core";
  std::atomic<bool> stop{false};
  std::thread work([&] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  YieldingWait yields;
  bool is_sleep_due = false;
  const auto deadline = YieldingWait::Clock::now() + std::chrono::seconds(30);
  while (!is_sleep_due && YieldingWait::Clock::now() < deadline) is_sleep_due = !yields.once();
  stop.store(true);
  work.join();
  ::sched_setaffinity(0, sizeof(before), &before);
  EXPECT_TRUE(is_sleep_due);
}

}  // namespace
}  // namespace lockstep
