// parameter_server under lockrun, with real processes: its tasks, its end, and the loss of a worker or a server, within docs/faults.md's
// limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "tests/faults/child.h"
#include "tests/support/pattern.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kLimit(5);  // docs/faults.md: a rank is killed
const std::string kForever = "1000000000";

// The process number that a task printed.
pid_t process_of(const std::string& output, const std::string& task) {
  const auto found = find_match(output, "\\[" + task + "\\] " + task + " is process ([0-9]+)");
  EXPECT_FALSE(found.empty()) << output;
  return found.empty() ? -1 : static_cast<pid_t>(std::stol(found[1]));
}

std::vector<std::string> job_of(const std::string& servers, const std::string& workers, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {LOCKSTEP_LOCKRUN, "--ps", servers, "--workers", workers, LOCKSTEP_PARAMETER_SERVER_RANK};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

TEST(ParameterServerJob, ServersEndWithTheLastWorker) {
  Child job(job_of("2", "2", {"20"}));
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.errors();
  for (const char* line : {"[worker:0] step 20\n", "[worker:1] worker:1 is process", "[ps:0] served\n", "[ps:1] served\n"})
    EXPECT_THAT(job.output(), HasSubstr(line));
  EXPECT_TRUE(job.nothing_left());
}

// What lockrun says and leaves with when `task`, rank `rank`, is killed amid steps.
void expect_loss_is_named(const std::string& task, int rank) {
  Child job(job_of("2", "2", {kForever}));
  ASSERT_TRUE(job.wait_for_output("[worker:0] step 10\n", std::chrono::seconds(60))) << job.errors();
  const std::string before = job.output();
  const pid_t victim = process_of(before, task);
  ASSERT_GT(victim, 0);
  const auto killed = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(victim, SIGKILL), 0);
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 137);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, kLimit);
  const std::string cause =
      "lockrun: rank " + std::to_string(rank) + " (" + task + ", pid " + std::to_string(victim) + ") was killed by signal 9";
  EXPECT_THAT(job.errors(), AllOf(HasSubstr(cause), HasSubstr("rank " + std::to_string(rank) + " is " + task)))
      << "survivors name it as well";
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, AKilledWorkerIsNamed) { expect_loss_is_named("worker:1", 1); }
TEST(ParameterServerJob, AKilledServerIsNamed) { expect_loss_is_named("ps:0", 2); }

TEST(ParameterServerJob, AWorkerThatStaysAwayIsNamedAtTheDeadline) {
  Child job(job_of("1", "2", {kForever, "away", "60"}), {.environment = {{"LOCKSTEP_TIMEOUT_S", "10"}}});
  EXPECT_EQ(job.wait(std::chrono::seconds(90)), 1) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("missing: worker:1 (rank 1), after step 4"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(ParameterServerJob, ProcessesThatAreNotAllOfTheJobAreRefused) {
  Child job({LOCKSTEP_LOCKRUN, "-n", "2", LOCKSTEP_PARAMETER_SERVER_RANK, "1"},
            {.environment = {{"LOCKSTEP_JOB", "ps"}, {"LOCKSTEP_TASK_INDEX", "0"}}});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 2) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("parameter_server: ranks 0 and 1 are both ps:0"));
}

}  // namespace
}  // namespace lockstep::testing
