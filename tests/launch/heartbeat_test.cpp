// When a heartbeat of the other lockrun is requested, and when it is given up.
#include "src/launch/supervise/heartbeat.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;

constexpr Clock::time_point kStart{};

// Looks every 100 ms; returns how often a heartbeat was to be requested.
int look_until(Heartbeat& sign, Clock::time_point& now, Clock::time_point end, bool answers) {
  int asked = 0;
  for (; now < end; now += 100ms) {
    if (!sign.look(now)) continue;
    ++asked;
    if (answers) sign.note_heartbeat();
  }
  return asked;
}

TEST(Heartbeat, OneThatAnswersIsAskedOnceASecond) {
  Heartbeat sign(2s, kStart);
  auto now = kStart;
  EXPECT_EQ(look_until(sign, now, kStart + 10s, true), 10);
  EXPECT_FALSE(sign.is_missing());
}

TEST(Heartbeat, OneThatDoesNotIsAskedOnceAndMissingAfterTheTime) {
  Heartbeat sign(2s, kStart);
  auto now = kStart;
  EXPECT_EQ(look_until(sign, now, kStart + 2s, false), 1);
  EXPECT_FALSE(sign.is_missing());
  look_until(sign, now, kStart + 2200ms, false);
  EXPECT_TRUE(sign.is_missing());
  sign.note_heartbeat();
  EXPECT_FALSE(sign.is_missing());
}

TEST(Heartbeat, TimeInWhichThisProcessWasStoppedDoesNotCount) {
  Heartbeat sign(2s, kStart);
  auto now = kStart;
  look_until(sign, now, kStart + 1s, false);
  now += 1h;
  sign.look(now);
  EXPECT_FALSE(sign.is_missing()) << "half a second of it may have been its own";
  look_until(sign, now, now + 2s, false);
  EXPECT_TRUE(sign.is_missing());
}

}  // namespace
}  // namespace lockstep::launch
