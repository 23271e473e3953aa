// monitored_barrier() with threads and both transports: it is a barrier, and it names all missing ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/message_of.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class MonitoredBarrier : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wires, MonitoredBarrier, ::testing::Values("shm", "tcp"));

TEST_P(MonitoredBarrier, NobodyPassesBeforeAllHaveCome) {
  constexpr int kRanks = 4, kRounds = 20;
  std::atomic<int> arrived{0};
  run_ranks(kRanks, GetParam(), [&](ProcessGroup& group) {
    for (int round = 1; round <= kRounds; ++round) {
      if (group.rank() == round % kRanks) std::this_thread::sleep_for(2ms);
      arrived.fetch_add(1);
      group.monitored_barrier(20s);
      ASSERT_GE(arrived.load(), round * kRanks);
      float value = 1;  // collectives and messages in between are not disturbed
      group.all_reduce(&value, 1, DType::kFloat32);
      ASSERT_EQ(value, kRanks);
    }
  });
}

TEST_P(MonitoredBarrier, NamesAllWhoAreMissing) {
  std::atomic<int> ended{0};
  run_ranks(5, GetParam(), [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1 || group.rank() == 4) {  // these do not come
      while (ended.load() < 3) std::this_thread::sleep_for(1ms);
      EXPECT_THROW(group.barrier(), PeerLost);
      return;
    }
    const auto started = std::chrono::steady_clock::now();
    const std::string said = message_of([&] { group.monitored_barrier(1s); });
    EXPECT_NE(said.find("monitored_barrier #2: ranks 1, 4 of 5 did not arrive within 1 s of rank"), std::string::npos)
        << said;
    EXPECT_LT(std::chrono::steady_clock::now() - started, 10s);
    ended.fetch_add(1);
  });
}

TEST_P(MonitoredBarrier, SeesAnAbortAtOnce) {
  std::atomic<int> passed{0};
  run_ranks(3, GetParam(), [&](ProcessGroup& group) {
    group.monitored_barrier(20s);
    passed.fetch_add(1);
    if (group.rank() == 2) {
      while (passed.load() < 3)
        std::this_thread::sleep_for(1ms);  // an abort also ends a barrier that a rank is still in
      return group.abort("the disk is full");
    }
    const auto started = std::chrono::steady_clock::now();
    const std::string said = message_of([&] { group.monitored_barrier(20s); });
    EXPECT_NE(said.find("rank 2 aborted the group: the disk is full"), std::string::npos) << said;
    EXPECT_LT(std::chrono::steady_clock::now() - started, 10s);
  });
}

TEST_P(MonitoredBarrier, AnotherPlaceInTheProgramIsADisagreement) {
  std::atomic<int> told{0};
  run_ranks(2, GetParam(), [&](ProcessGroup& group) {
    // With separate barriers for each backend, a rank could be one barrier ahead: number 2 here, number 1 there.
    if (group.rank() == 0) group.barrier_async();
    const std::string said = message_of([&] { group.monitored_barrier(10s); });
    if (said.find("rank 0 in monitored_barrier #2") != std::string::npos ||
        said.find("rank 0 is in monitored_barrier #2") != std::string::npos)
      told.fetch_add(1);
    else
      EXPECT_NE(said.find("aborted the group"), std::string::npos) << said;
  });
  EXPECT_GE(told.load(), 1);
}

TEST_P(MonitoredBarrier, AloneItIsPassed) {
  run_ranks(1, GetParam(), [](ProcessGroup& group) { group.monitored_barrier(1ms); });
}

}  // namespace
}  // namespace lockstep
