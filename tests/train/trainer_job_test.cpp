// If the program has not done so, a Trainer joins the job that its process was started in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(TrainerJob, IsJoinedByCompile) {
  Child job({LOCKSTEP_LOCKRUN, "--no-fold", "-n", "2", LOCKSTEP_TRAINER_JOB_RANK, "ddp"});
  EXPECT_EQ(job.wait(60s), 0) << job.errors();
  for (const char* line : {"[0] rank 0 of 2 trained\n", "[1] rank 1 of 2 trained\n"})
    EXPECT_THAT(job.output(), HasSubstr(line));
  Child alone({LOCKSTEP_TRAINER_JOB_RANK, "ddp"});
  EXPECT_EQ(alone.wait(60s), 0) << alone.errors();
  EXPECT_EQ(alone.output(), "rank 0 of 1 trained\n");
}

// Otherwise each rank would train by itself without any message.
TEST(TrainerJob, OfSeveralRanksRefusesAStrategyOfOneProcess) {
  Child job({LOCKSTEP_LOCKRUN, "-n", "2", LOCKSTEP_TRAINER_JOB_RANK, "mirrored"});
  EXPECT_EQ(job.wait(60s), 2) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("drives all devices from one process"));
  EXPECT_EQ(job.output(), "");
}

}  // namespace
}  // namespace lockstep::testing
