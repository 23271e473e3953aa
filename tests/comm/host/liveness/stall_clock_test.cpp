// The stall clock decides from times and counters alone.
#include "src/comm/host/liveness/stall_clock.h"

#include <gtest/gtest.h>

#include "src/comm/host/machine/activity.h"

namespace lockstep::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ranks = std::vector<int>;

class StallClockTest : public ::testing::Test {
 protected:
  // Looks every second up to `until`, while the ranks in `beating` send heartbeats.
  void run_to(seconds until, const Ranks& beating) {
    for (; now_ < begin_ + until; now_ += seconds(1)) {
      clock_.look(now_);
      ++beats_;
      for (const int rank : beating) clock_.note_beats(rank, beats_);
    }
    clock_.look(now_);
  }
  void sleep(seconds time) { now_ += time, begin_ += time; }

  StallClock::Clock::time_point begin_{std::chrono::hours(1000)}, now_ = begin_;
  StallClock clock_{3, seconds(30), seconds(1), begin_};
  std::uint64_t beats_ = 0;
};

TEST_F(StallClockTest, NobodyIsStalledAtFirst) {
  EXPECT_EQ(clock_.stalled(), Ranks{});
  EXPECT_EQ(clock_.until_next_stall(), seconds(30));
}

TEST_F(StallClockTest, WhoIsSilentForTheWholeTimeIsStalled) {
  run_to(seconds(10), {0, 1, 2});
  run_to(seconds(38), {0, 2});
  EXPECT_EQ(clock_.stalled(), Ranks{});
  EXPECT_EQ(clock_.until_next_stall(), seconds(1));
  run_to(seconds(39), {0, 2});
  EXPECT_EQ(clock_.stalled(), Ranks{1});
  EXPECT_EQ(clock_.silent_for(1), seconds(30));
}

TEST_F(StallClockTest, ACounterThatStandsStillIsNoSign) {
  clock_.look(now_ += seconds(1));
  clock_.note_beats(1, 5);
  run_to(seconds(20), {0, 2});
  clock_.note_beats(1, 5);
  EXPECT_EQ(clock_.silent_for(1), seconds(19));
  clock_.note_beats(1, 6);
  EXPECT_EQ(clock_.silent_for(1), seconds(0));
}

TEST_F(StallClockTest, WhoIsForgottenIsNeverStalled) {
  clock_.forget(0);
  run_to(seconds(100), {1});
  EXPECT_EQ(clock_.stalled(), Ranks{2});
}

// The job was stopped for an hour: no rank could send heartbeats, and this one could not receive them.
TEST_F(StallClockTest, TimeInWhichThisRankSleptIsNobodysSilence) {
  run_to(seconds(10), {0, 1, 2});
  sleep(seconds(3600));
  run_to(seconds(11), {});
  EXPECT_EQ(clock_.stalled(), Ranks{});
  EXPECT_EQ(clock_.slept(now_), seconds(3599)) << "its own longest pause counts";
  EXPECT_LE(clock_.silent_for(1), seconds(3));
  run_to(seconds(60), {0, 2});
  EXPECT_EQ(clock_.stalled(), Ranks{1}) << "and silence counts again afterwards";
}

TEST_F(StallClockTest, ManyShortSleepsAddUp) {
  for (int i = 1; i <= 10; ++i) {
    run_to(seconds(i), {0});
    sleep(seconds(5));
  }
  EXPECT_EQ(clock_.slept(now_), seconds(40));
  EXPECT_EQ(clock_.stalled(), Ranks{});
}

TEST_F(StallClockTest, WhoAsksBeforeTheNextLookHearsOfTheSleepToo) {
  clock_.look(now_);
  EXPECT_EQ(clock_.slept(now_ + seconds(1)), seconds(0));
  EXPECT_EQ(clock_.slept(now_ + seconds(8)), seconds(7));
  EXPECT_EQ(clock_.slept(now_), seconds(0)) << "a query changes nothing";
}

// -- the last activity of a rank

class ActivityTest : public ::testing::Test {
 protected:
  Signature call(OperationKind kind, std::uint64_t sequence) const {
    Signature signature;
    signature.kind = kind;
    signature.sequence = sequence;
    return signature;
  }
  ActivityRecord record_{};
  ActivityWriter writer_{&record_};
  StallClock::Clock::time_point now_{std::chrono::hours(1000)};
  Sighting sighting_;
};

TEST_F(ActivityTest, NothingYet) {
  EXPECT_EQ(sighting_.whereabouts(now_), "has sent no heartbeat yet");
  sighting_.see(record_.read(), now_);
  EXPECT_EQ(sighting_.last_seen(now_), "had made no call yet");
  EXPECT_EQ(sighting_.whereabouts(now_), "has made no call yet");
}

TEST_F(ActivityTest, InsideAndThenFinished) {
  writer_.begin(call(OperationKind::kAllReduce, 39), {"bucket", 2});
  sighting_.see(record_.read(), now_);
  EXPECT_EQ(sighting_.last_seen(now_ + milliseconds(30900)), "was last seen in all_reduce #39 (bucket 2), 31 s ago");
  sighting_.see(record_.read(), now_ + seconds(40));
  EXPECT_EQ(sighting_.whereabouts(now_ + seconds(40)), "has been in all_reduce #39 (bucket 2) for 40 s");
  EXPECT_EQ(sighting_.whereabouts(now_ + seconds(41)),
            "has been in all_reduce #39 (bucket 2) for 41 s, by its heartbeat of 1.0 s ago");
  writer_.finish();
  sighting_.see(record_.read(), now_ + seconds(50));
  EXPECT_EQ(sighting_.whereabouts(now_ + seconds(50)),
            "has finished all_reduce #39 (bucket 2) 0.0 s ago and made no call since: it is in the program's own code");
  EXPECT_EQ(sighting_.last_seen(now_ + seconds(62)),
            "had finished all_reduce #39 (bucket 2) 12 s ago and was in the program's own code");
}

TEST_F(ActivityTest, PurposesChangeFromCallToCall) {
  writer_.begin(call(OperationKind::kBroadcast, 7), {"a purpose that is longer than a note"});
  EXPECT_EQ(record_.read().text(), "broadcast #7 (a purpose that is longe)");
  writer_.begin(call(OperationKind::kBarrier, (std::uint64_t{1} << 40) + 1), {});
  EXPECT_EQ(record_.read().text(), "barrier #1099511627777");
  writer_.begin(call(OperationKind::kAllGather, 9), {nullptr, 3});
  EXPECT_EQ(record_.read().text(), "all_gather #9 (index 3)");
}

}  // namespace
}  // namespace lockstep::host
