// lockrun --max-restarts with real ranks on one machine: a job that has failed goes on from its checkpoint and ends
// with the weights of an undisturbed run.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>

#include "tests/faults/restart_job.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Restart, AJobGoesOnFromItsCheckpointWithTheSameBits) {
  const std::string expected = undisturbed_weights(2);
  for (const std::string how : {"kill", "exit:3", "throw", "segv"}) {
    SCOPED_TRACE(how);
    Child job(this->job(2, {"--max-restarts", "2"},
                        training(how, {"fail_rank=1", "fail_at=13", "how=" + how, "fail_attempts=1"})));
    EXPECT_EQ(job.wait(kLong), 0) << job.errors();
    EXPECT_EQ(weights_in(job.output()), expected);
    EXPECT_THAT(job.errors(),
                AllOf(HasSubstr("lockrun: restarts the job: attempt 1 of at most 2\n"),
                      HasSubstr("lockrun: 2 attempts, exit code 0\n"), HasSubstr("from step 10: finished")));
    EXPECT_TRUE(job.nothing_left());
    const nlohmann::json all = report()["attempts"];
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[0]["resumed_step"], nullptr);
    EXPECT_EQ(all[0]["saved_step"], 10);
    EXPECT_EQ(all[0]["step"], 13);
    EXPECT_EQ(all[0]["first_failure"]["rank"], 1);
    EXPECT_EQ(all[0]["first_failure"]["exception"], how == "throw" ? "this rank has had enough" : "");
    EXPECT_EQ(all[0]["consequences"], nlohmann::json::array({0}));
    EXPECT_EQ(all[1]["resumed_step"], 10);
    EXPECT_EQ(all[1]["step"], 23);
    EXPECT_EQ(all[1]["end"], "finished");
  }
}

TEST_F(Restart, TheLimitEndsAJobThatFailsAtEverAnotherStep) {
  Child job(this->job(2, {"--max-restarts", "2"}, training("limit", {"fail_rank=0", "fail_later=4", "how=exit:7"})));
  EXPECT_EQ(job.wait(kLong), 7) << job.errors();
  EXPECT_THAT(job.errors(), AllOf(HasSubstr("attempt 1 of at most 2"), HasSubstr("attempt 2 of at most 2"),
                                  HasSubstr("lockrun: 3 attempts, exit code 7"), Not(HasSubstr("no restart"))));
  EXPECT_TRUE(job.nothing_left());
}

TEST_F(Restart, TheSameFailureTwiceEndsTheJob) {
  Child before_first_checkpoint(
      this->job(2, {"--max-restarts", "9"}, training("early", {"fail_rank=1", "fail_at=2", "how=throw"})));
  EXPECT_EQ(before_first_checkpoint.wait(kLong), 1);
  EXPECT_THAT(before_first_checkpoint.errors(),
              HasSubstr("lockrun: no restart: the same failure has ended two attempts at step 2, 0 and 1"));
  Child after(this->job(2, {"--max-restarts", "9"}, training("late", {"fail_rank=1", "fail_at=12", "how=throw"})));
  EXPECT_EQ(after.wait(kLong), 1);
  EXPECT_THAT(after.errors(), HasSubstr("the same failure has ended two attempts at step 12, 0 and 1"));
  EXPECT_EQ(report()["attempts"].size(), 2U);
}

TEST_F(Restart, MistakesAndSignalsEndTheJobAtOnce) {
  Child not_found(this->job(2, {"--max-restarts", "9"}, {"no-such-program"}));
  EXPECT_EQ(not_found.wait(kLong), 127);
  Child wrong_argument(this->job(2, {"--max-restarts", "9"}, {TRAINING_RANK, "steps"}));
  EXPECT_EQ(wrong_argument.wait(kLong), 2);
  EXPECT_THAT(wrong_argument.errors(), HasSubstr("lockrun: no restart: rank"));
  Child interrupted(this->job(2, {"--max-restarts", "9"}, training("signal", {"steps=1000000", "pause_ms=5"})));
  ASSERT_TRUE(interrupted.wait_for_output("is running")) << interrupted.errors();
  interrupted.signal(SIGTERM);
  EXPECT_EQ(interrupted.wait(kLong), 128 + SIGTERM) << interrupted.errors();
  EXPECT_THAT(interrupted.errors(), Not(HasSubstr("restarts the job")));
  EXPECT_EQ(report()["attempts"][0]["end"], "interrupted");
  EXPECT_TRUE(interrupted.nothing_left());
}

TEST_F(Restart, TheReportIsAFileThatCanBeWritten) {
  const auto refusal_of = [](const std::string& path) {
    Child job({LOCKRUN, "-n", "1", "--report", path, "true"});
    EXPECT_EQ(job.wait(), 2);
    return job.errors();
  };
  EXPECT_THAT(refusal_of(folder() + "/missing/report.json"),
              HasSubstr("--report " + folder() + "/missing/report.json: the file cannot be written"));
  EXPECT_THAT(refusal_of("/dev/null"), HasSubstr("--report /dev/null: it is not a regular file"));
  EXPECT_THAT(refusal_of(folder()), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo((folder() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder() + "/pipe"), HasSubstr("is not a regular file"));
  std::ofstream(folder() + "/target.json") << "old";
  fs::create_symlink(folder() + "/target.json", folder() + "/link.json");
  Child job({LOCKRUN, "-n", "1", "--report", folder() + "/link.json", "true"});
  EXPECT_EQ(job.wait(), 0) << job.errors();
  EXPECT_TRUE(fs::is_symlink(folder() + "/link.json"));
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(folder() + "/target.json"))["attempts"].size(), 1U);
}

// It is not known how far a program has come that does not use Lockstep.
TEST_F(Restart, AnyProgramIsRestartedAsOftenAsAskedFor) {
  Child job(this->job(1, {"--max-restarts", "2"}, {"sh", "-c", "exit 1"}));
  EXPECT_EQ(job.wait(kLong), 1);
  const nlohmann::json all = report()["attempts"];
  ASSERT_EQ(all.size(), 3U) << job.errors();
  EXPECT_EQ(all[0]["step"], nullptr);
  EXPECT_THAT(job.errors(), HasSubstr("attempt 2 of at most 2, in 1 s"));
}

// The progress of a program that a rank starts is not the rank's, and what an attempt leaves notes nothing in the next.
TEST_F(Restart, ProgressIsTheRanksOwn) {
  std::ofstream(folder() + "/rank.sh") << "cd " << folder() << "\n"
                                       << "env -i LOCKSTEP_PROGRESS=$LOCKSTEP_PROGRESS " << TRAINING_RANK
                                       << " steps=3 metrics=10 >first.txt\n"
                                       << "exec " << TRAINING_RANK << " steps=5 metrics=10\n";
  Child job(this->job(1, {}, {"sh", folder() + "/rank.sh"}));
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  EXPECT_EQ(report()["attempts"][0]["step"], 5) << "the first program has ended";
}

// The first attempt leaves a process that joins the second one's store, on the same port and with the same token.
TEST_F(Restart, ARankOfAnEarlierAttemptIsRefused) {
  std::ofstream(folder() + "/late.sh") << "cd " << folder() << "\n"
                                       << "touch ready; for i in $(seq 3000); do [ -e go ] && break; sleep 0.01; done\n"
                                       << COLLECTIVE_RANK << " >late 2>&1; touch done\n";
  std::ofstream(folder() + "/rank.sh") << "cd " << folder() << "\n"
                                       << "if [ $LOCKSTEP_RESTART_COUNT = 0 ]; then\n"
                                       << "  setsid sh late.sh >/dev/null 2>&1 </dev/null &\n"
                                       << "  while [ ! -e ready ]; do sleep 0.01; done; exit 9\n"
                                       << "fi\n"
                                       << "touch go; for i in $(seq 3000); do [ -e done ] && break; sleep 0.01; done\n";
  Child job(this->job(1, {"--max-restarts", "1"}, {"sh", folder() + "/rank.sh"}));
  EXPECT_EQ(job.wait(kLong), 0) << job.errors();
  std::ifstream late(folder() + "/late");
  const std::string text{std::istreambuf_iterator<char>(late), {}};
  EXPECT_THAT(text,
              HasSubstr("serves another attempt of this job, and this process belongs to attempt 0, which has ended"));
}

TEST_F(Restart, RanksFindTheirAttemptAndKeepThePorts) {
  Child job({LOCKRUN, "-n", "1", "--no-prefix", "--max-restarts", "3", "sh", "-c",
             "echo at $LOCKSTEP_RESTART_COUNT of $LOCKSTEP_MAX_RESTARTS: $MASTER_PORT $LOCKSTEP_STORE_PORT "
             "$LOCKSTEP_TOKEN; exit $((3 + LOCKSTEP_RESTART_COUNT))"});
  EXPECT_EQ(job.wait(kLong), 6) << job.errors();
  const std::string output = job.output(), first = output.substr(0, output.find('\n'));
  const std::string ports = first.substr(first.find(':'));
  for (int attempt = 0; attempt < 4; ++attempt)
    EXPECT_THAT(output, HasSubstr("at " + std::to_string(attempt) + " of 3" + ports + "\n"));
  Child without({LOCKRUN, "-n", "1", "--no-prefix", "sh", "-c", "echo \"<$LOCKSTEP_RESTART_COUNT>\""});
  EXPECT_EQ(without.wait(), 0);
  EXPECT_EQ(without.output(), "<>\n");
}

}  // namespace
}  // namespace lockstep::testing
