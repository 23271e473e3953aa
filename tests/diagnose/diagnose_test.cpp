// Findings from invented records, each with one right answer.
#include "src/diagnose/diagnose.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <limits>

#include "src/diagnose/one_clock.h"
#include "src/diagnose/record_folder.h"
#include "src/diagnose/report.h"
#include "tests/diagnose/invented_records.h"

namespace lockstep::diagnose {
namespace {

namespace fs = std::filesystem;
using Kind = Finding::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Diagnose, NamesWhoHasNotCalledAndWhoWaits) {
  std::vector<FlightDump> dumps{rank_of(0, 4, 40), rank_of(1, 4, 40), rank_of(2, 4, 40), rank_of(3, 4, 40)};
  for (const std::size_t r : {0, 1, 3}) enter(dumps[r], 41, kStart + 47 * kSecond + kSecond * 7 / 10);
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].text,
            "rank 2 has not called all_reduce #41 (bucket 2, float32 x 100, sum); ranks 0, 1, 3 have waited in it for "
            "12.3 s; rank 2's last operation, all_reduce #40 (bucket 1, float32 x 100, sum), finished 20.0 s before "
            "its record was written");
  EXPECT_EQ(findings[0].kind, Kind::kNotCalled);
  EXPECT_EQ(findings[0].sequence, 41u);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_THAT(findings[0].waiting, ElementsAre(0, 1, 3));
  EXPECT_NEAR(findings[0].seconds, 12.3, 1e-6);
}

TEST(Diagnose, AWaitEndsWhenTheCallFails) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 3), rank_of(1, 2, 3)};
  enter(dumps[0], 4, kStart + 10 * kSecond, FlightState::kFailed, kStart + 15 * kSecond);
  dumps[0].groups[0].failure = FlightFailure{"rank 1 did not arrive", kStart + 15 * kSecond};
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 has not called all_reduce #4"));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 0 has waited in it for 5.0 s"));
  EXPECT_EQ(findings[1].kind, Kind::kError);
  EXPECT_EQ(findings[1].text, "rank 0 ended with: rank 1 did not arrive");
}

TEST(Diagnose, OneReasonIsQuotedOnce) {
  std::vector<FlightDump> dumps{rank_of(0, 3, 3), rank_of(1, 3, 3), rank_of(2, 3, 3)};
  dumps[0].groups[0].failure = FlightFailure{"all_reduce #4: rank 1 died", 0};
  dumps[1].groups[0].failure = FlightFailure{"another thing", 0};
  dumps[2].groups[0].failure = FlightFailure{"rank 1 died", 0};
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].text, "ranks 0, 2 ended with: rank 1 died");
  EXPECT_EQ(findings[1].text, "rank 1 ended with: another thing");
}

TEST(Diagnose, ARankThatNeverCalledAnythingIsNamed) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 0), rank_of(1, 2, 0)};
  enter(dumps[0], 1, kStart);
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 has made no such call at all"));
}

TEST(Diagnose, ShowsBothSidesOfADisagreement) {
  std::vector<FlightDump> dumps{rank_of(0, 3, 11), rank_of(1, 3, 11), rank_of(2, 3, 11)};
  enter(dumps[0], 12, kStart + 50 * kSecond);
  enter(dumps[1], 12, kStart + 50 * kSecond, FlightState::kIssued);
  dumps[2].groups[0].operations.push_back({.sequence = 12,
                                           .operation = "broadcast",
                                           .dtype = "float32",
                                           .count = 100,
                                           .root = 0,
                                           .state = FlightState::kFailed,
                                           .issued_ns = kStart,
                                           .started_ns = kStart,
                                           .ended_ns = kStart});
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kMismatch);
  ASSERT_EQ(findings[0].sides.size(), 2u);
  EXPECT_EQ(findings[0].sides[0].what, "all_reduce #12 (bucket 0, float32 x 100, sum)");
  EXPECT_THAT(findings[0].sides[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(findings[0].sides[1].what, "broadcast #12 (float32 x 100, root 0)");
  EXPECT_THAT(findings[0].sides[1].ranks, ElementsAre(2));
}

TEST(Diagnose, AFollowerThatHasNotBegunIsACallThatWasNotMade) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 11), rank_of(1, 2, 11)};
  enter(dumps[0], 12, kStart + 50 * kSecond);
  dumps[1].groups[0].operations.push_back(
      {.sequence = 12, .operation = "follower", .dtype = "uint8", .issued_ns = kStart});
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kNotCalled);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 has not called all_reduce #12"));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 is still in follower #12"));
}

TEST(Diagnose, NamesWhoLeftNoRecord) {
  std::vector<FlightDump> dumps{rank_of(0, 3, 5), rank_of(2, 3, 5)};
  for (FlightDump& dump : dumps) enter(dump, 6, kStart + 58 * kSecond);
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kNoRecord);
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 left no record"));
  EXPECT_THAT(findings[0].text, HasSubstr("ranks 0, 2 have waited in it for 2.0 s"));
  EXPECT_THAT(text_report({dumps, {}}, findings), HasSubstr("2 of 3 ranks left a record, on 1 host; none from rank 1"));
}

TEST(Diagnose, TellsAStalledOperationFromOneThatSomebodyHasNotCalled) {
  std::vector<FlightDump> dumps{rank_of(0, 3, 5), rank_of(1, 3, 6), rank_of(2, 3, 5)};
  enter(dumps[0], 6, kStart + 50 * kSecond);
  enter(dumps[2], 6, kStart + 55 * kSecond);
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kNotFinished);
  EXPECT_THAT(findings[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 finished it"));
  EXPECT_THAT(findings[0].text, HasSubstr("ranks 0, 2 have been in it for 10.0 s"));
}

// Each rank waits for the other, in different groups.
TEST(Diagnose, SaysInWhichOtherGroupARankIs) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 5), rank_of(1, 2, 5)};
  enter(dumps[0], 6, kStart + 50 * kSecond);
  for (FlightDump& dump : dumps)
    dump.groups.push_back({.name = "world/split1.0",
                           .rank = dump.rank,
                           .world_size = 2,
                           .members = {0, 1},
                           .backend = "host",
                           .transport = "shm"});
  dumps[1].groups[1].operations.push_back({.sequence = 1,
                                           .operation = "barrier",
                                           .state = FlightState::kStarted,
                                           .issued_ns = kStart + 57 * kSecond,
                                           .started_ns = 1});
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_THAT(findings[0].text, HasSubstr("group world: rank 1 has not called all_reduce #6"));
  EXPECT_THAT(findings[0].text, HasSubstr("it has been in barrier #1 of group world/split1.0 for 3.0 s"));
  EXPECT_THAT(findings[1].text, HasSubstr("group world/split1.0: rank 0 has not called barrier #1"));
}

TEST(Diagnose, RanksOfAPartAreNamedAsTheJobDoes) {
  std::vector<FlightDump> dumps{rank_of(0, 4, 0), rank_of(3, 4, 0)};
  for (std::size_t i = 0; i < 2; ++i)
    dumps[i].groups[0] = {.name = "part",
                          .rank = static_cast<int>(1 - i),
                          .world_size = 2,
                          .members = {3, 0},
                          .backend = "host",
                          .transport = "shm"};
  enter(dumps[0], 1, kStart);
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].ranks, ElementsAre(3));
  EXPECT_THAT(findings[0].waiting, ElementsAre(0));
}

TEST(Diagnose, AllocationsAreCallsToo) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 2), rank_of(1, 2, 2)};
  dumps[0].groups[0].messages.push_back({.sequence = 1,
                                         .operation = "allocate",
                                         .dtype = "uint8",
                                         .count = 64,
                                         .bytes = 64,
                                         .state = FlightState::kStarted,
                                         .issued_ns = kStart + 59 * kSecond,
                                         .started_ns = 1});
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].text,
              HasSubstr("rank 1 has not called allocate #1 (64 bytes); rank 0 has waited in it for 1.0 s"));
}

TEST(Diagnose, AReceiveWithoutASendIsExplained) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 2), rank_of(1, 2, 2)};
  const auto message = [](std::uint64_t n, const char* what, int peer, FlightState state) {
    return FlightEntry{.sequence = n,
                       .operation = what,
                       .dtype = "int8",
                       .count = 1,
                       .bytes = 1,
                       .peer = peer,
                       .tag = 7,
                       .state = state,
                       .issued_ns = kStart + 56 * kSecond,
                       .started_ns = 1};
  };
  dumps[0].groups[0].messages = {message(1, "recv", 1, FlightState::kFinished),
                                 message(2, "recv", 1, FlightState::kStarted)};
  dumps[1].groups[0].messages = {message(1, "send", 0, FlightState::kFinished)};
  auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kMessage);
  EXPECT_EQ(findings[0].text,
            "rank 0 has been in recv #2 from rank 1 (tag 7, int8 x 1) for 4.0 s; rank 1 has not sent it");
  dumps[1].groups[0].messages.push_back(message(2, "send", 0, FlightState::kFinished));
  findings = diagnose(dumps);
  EXPECT_THAT(findings.at(0).text, Not(HasSubstr("has not sent it")));
}

TEST(Diagnose, QuietMeansQuiet) {
  const auto findings = diagnose({rank_of(0, 2, 812), rank_of(1, 2, 812)});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kQuiet);
  EXPECT_THAT(findings[0].text, HasSubstr("have finished all_reduce #812"));
}

TEST(Diagnose, NamesAStraggler) {
  std::vector<FlightDump> dumps{rank_of(0, 3, 30), rank_of(1, 3, 30), rank_of(2, 3, 30)};
  for (FlightEntry& call : dumps[1].groups[0].operations) call.issued_ns += 4 * kSecond / 1000;
  const auto findings = diagnose(dumps);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].kind, Kind::kStraggler);
  EXPECT_THAT(findings[1].ranks, ElementsAre(1));
  EXPECT_THAT(findings[1].text, HasSubstr("rank 1 came last to 30 of the 30 last calls"));
  EXPECT_THAT(findings[1].text, HasSubstr("typically 4.0 ms"));
}

// Another machine's wall clock is 5 s ahead: its ranks are not stragglers.
TEST(Diagnose, ClocksOfMachinesMeetAtTheCallsThatTheyEndTogether) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 30), rank_of(1, 2, 30)};
  dumps[1].boot_id = "other";
  dumps[1].written_ns += 5 * kSecond;
  for (FlightEntry& call : dumps[1].groups[0].operations) {
    call.issued_ns += 5 * kSecond;
    call.ended_ns += 5 * kSecond;
  }
  EXPECT_THAT(clock_shifts(dumps), ElementsAre(0, -5 * kSecond));
  EXPECT_EQ(diagnose(dumps).size(), 1u);
}

// On one machine, a wall clock that was set between two records does not matter.
TEST(Diagnose, OneMachineHasOneClock) {
  std::vector<FlightDump> dumps{rank_of(0, 2, 1), rank_of(1, 2, 1)};
  dumps[1].written_ns += 3600 * kSecond;
  EXPECT_THAT(clock_shifts(dumps), ElementsAre(0, -3600 * kSecond));
}

TEST(SortOut, AnOlderJobsRecordsAreLeftOut) {
  FlightDump old = rank_of(3, 4, 1);
  old.job = "former";
  old.written_ns -= 7200 * kSecond;
  const Records records = sort_out({old, rank_of(1, 2, 1), rank_of(0, 2, 1)});
  ASSERT_EQ(records.dumps.size(), 2u);
  EXPECT_EQ(records.dumps[0].rank, 0);
  ASSERT_EQ(records.ignored.size(), 1u);
  EXPECT_THAT(
      records.ignored[0],
      HasSubstr("rank3.json belongs to another job and was written 7200 s before the newest: ignored. Remove it"));
}

}  // namespace
}  // namespace lockstep::diagnose
