// Which ends of an attempt lead to a restart, and the report about the attempts.
#include "src/launch/attempts/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;

Attempt failed_at(std::int64_t step, const std::string& how, int number = 0) {
  Attempt attempt;
  attempt.number = number;
  attempt.end = Attempt::End::kFailed;
  attempt.exit_code = 1;
  attempt.step = step;
  attempt.failure = FirstFailure{.rank = 1, .how = how};
  return attempt;
}

TEST(RestartPolicy, RestartsAFailureAsOftenAsItMay) {
  RestartPolicy never(0);
  EXPECT_FALSE(never.judge(failed_at(3, "exited with code 1")).restarts);
  RestartPolicy twice(2);
  EXPECT_TRUE(twice.judge(failed_at(3, "exited with code 1", 0)).restarts);
  EXPECT_TRUE(twice.judge(failed_at(7, "exited with code 1", 1)).restarts);
  const auto last = twice.judge(failed_at(9, "exited with code 1", 2));
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.why_not, "") << "the attempts' lines say it";
  RestartPolicy of_a_node_that_came_back(2);
  EXPECT_FALSE(of_a_node_that_came_back.judge(failed_at(9, "exited with code 1", 2)).restarts) << "the numbers go on";
}

TEST(RestartPolicy, WaitsLongerForAttemptsThatReachNoCheckpoint) {
  RestartPolicy policy(100);
  std::vector<std::int64_t> pauses;
  for (int number = 0; number < 9; ++number)
    pauses.push_back(policy.judge(failed_at(number, "exited with code 1", number)).pause.count());
  EXPECT_THAT(pauses, ::testing::ElementsAre(0, 1, 2, 4, 8, 16, 30, 30, 30));
  Attempt saved = failed_at(20, "exited with code 1", 9);
  saved.saved_step = 20;
  EXPECT_EQ(policy.judge(saved).pause.count(), 0);
  EXPECT_EQ(policy.judge(failed_at(21, "exited with code 1", 10)).pause.count(), 0);
}

TEST(RestartPolicy, LeavesEndsThatAreNoFailures) {
  for (const auto end :
       {Attempt::End::kFinished, Attempt::End::kInterrupted, Attempt::End::kPreempted, Attempt::End::kNotStarted}) {
    Attempt attempt = failed_at(3, "exited with code 1");
    attempt.end = end;
    EXPECT_FALSE(RestartPolicy(5).judge(attempt).restarts);
  }
  Attempt without_rank = failed_at(3, "");
  without_rank.failure = std::nullopt;
  EXPECT_FALSE(RestartPolicy(5).judge(without_rank).restarts) << "the reader of the output has gone";
}

TEST(RestartPolicy, StopsAtAFailureThatComesAgain) {
  RestartPolicy policy(5);
  EXPECT_TRUE(policy.judge(failed_at(3, "exited with code 1", 0)).restarts);
  Attempt resumed = failed_at(3, "exited with code 1", 1);
  resumed.resumed_step = 2;
  const auto answer = policy.judge(resumed);
  EXPECT_FALSE(answer.restarts);
  EXPECT_THAT(answer.why_not, HasSubstr("the same failure has ended two attempts at step 3, 0 and 1"));
}

TEST(RestartPolicy, TellsFailuresApart) {
  const auto restarts_after = [](Attempt first, Attempt second) {
    RestartPolicy policy(5);
    return policy.judge(first).restarts && policy.judge(second).restarts;
  };
  const Attempt once = failed_at(3, "exited with code 1");
  EXPECT_FALSE(restarts_after(once, once));
  EXPECT_TRUE(restarts_after(once, failed_at(4, "exited with code 1")));
  EXPECT_TRUE(restarts_after(once, failed_at(3, "exited with code 7")));
  Attempt of_other_rank = once, with_text = once;
  of_other_rank.failure->rank = 0;
  with_text.failure->exception = "the disk is full";
  EXPECT_TRUE(restarts_after(once, of_other_rank));
  EXPECT_TRUE(restarts_after(once, with_text));
  EXPECT_FALSE(restarts_after(with_text, with_text));
  Attempt killed = failed_at(0, "was killed by signal 9 (SIGKILL: Killed)");
  killed.failure->is_from_outside = true;
  EXPECT_TRUE(restarts_after(killed, killed)) << "the sender of the signal may not send it again";
  Attempt unknown = once;
  unknown.step = std::nullopt;
  EXPECT_TRUE(restarts_after(unknown, unknown)) << "a program that notes no steps may have come further";
}

TEST(RestartPolicy, DoesNotRepeatARefusalOfTheArguments) {
  Attempt attempt = failed_at(0, "exited with code 2");
  attempt.exit_code = 2;
  const auto answer = RestartPolicy(5).judge(attempt);
  EXPECT_FALSE(answer.restarts);
  EXPECT_THAT(answer.why_not, HasSubstr("rank 1 exited with code 2 before its first step"));
  attempt.step = 1;
  EXPECT_TRUE(RestartPolicy(5).judge(attempt).restarts);
  attempt.step = std::nullopt;
  EXPECT_TRUE(RestartPolicy(5).judge(attempt).restarts) << "perhaps after hours";
}

TEST(AttemptReport, SaysTheSameToPeopleAndPrograms) {
  Attempt first = failed_at(14, "was killed by signal 9 (SIGKILL: Killed)", 0);
  first.exit_code = 137;
  first.saved_step = 10;
  first.consequences = {0, 2, 3};
  first.began = std::chrono::system_clock::time_point(std::chrono::seconds(1'000'000'000));
  Attempt second = failed_at(12, "exited with code 1", 1);
  second.resumed_step = 10;
  second.failure->task = "ps:0";
  second.failure->exception = "the disk is full\nand a second line";
  second.failure->last_lines = {"train: error: the disk is full"};
  Attempt third;
  third.number = 2;
  third.resumed_step = 10;
  third.step = 100;
  const std::vector<Attempt> all = {first, second, third};
  const std::string text = text_of(all, 0);
  EXPECT_THAT(text, HasSubstr("lockrun: 3 attempts, exit code 0\n"));
  EXPECT_THAT(text, HasSubstr("lockrun:   attempt 0 at 2001-09-09T01:46:40Z, from the start: failed at step 14: rank 1 "
                              "was killed by signal 9 (SIGKILL: Killed); then ranks 0,2-3\n"));
  EXPECT_THAT(text, HasSubstr("from step 10: failed at step 12: rank 1 (ps:0) exited with code 1: the disk is full\n"));
  EXPECT_THAT(text, HasSubstr("from step 10: finished at step 100\n"));

  const auto report = nlohmann::json::parse(json_of(all, 5, 0));
  EXPECT_EQ(report["max_restarts"], 5);
  EXPECT_EQ(report["exit_code"], 0);
  const auto& attempts = report["attempts"];
  ASSERT_EQ(attempts.size(), 3U);
  EXPECT_EQ(attempts[0]["began"], "2001-09-09T01:46:40Z");
  EXPECT_EQ(attempts[0]["resumed_step"], nullptr);
  EXPECT_EQ(attempts[0]["saved_step"], 10);
  EXPECT_EQ(attempts[0]["first_failure"]["rank"], 1);
  EXPECT_EQ(attempts[0]["consequences"], nlohmann::json({0, 2, 3}));
  EXPECT_EQ(attempts[1]["first_failure"]["exception"], "the disk is full\nand a second line");
  EXPECT_EQ(attempts[1]["first_failure"]["last_lines"][0], "train: error: the disk is full");
  EXPECT_EQ(attempts[2]["end"], "finished");
  EXPECT_EQ(attempts[2]["first_failure"], nullptr);
  EXPECT_EQ(attempts[2]["step"], 100);
}

}  // namespace
}  // namespace lockstep::launch
