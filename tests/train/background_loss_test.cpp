// A rank dies while a thread of its process writes: the others end soon, also without a launcher that kills them, and
// the checkpoint before loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/train/checkpoint.h"
#include "tests/faults/hand_job.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using testing::Folder;

TEST(BackgroundLoss, OfARankThatWritesEndsTheOthersAndLeavesTheCheckpointBefore) {
  const Folder folder;
  testing::HandJob job(2);
  job.start_all({folder.path()});
  EXPECT_EQ(job[1].wait(std::chrono::seconds(60)), 128 + SIGKILL) << job[1].errors();
  EXPECT_EQ(job[0].wait(std::chrono::seconds(60)), kPeerLostExitCode) << job[0].errors();
  EXPECT_THAT(job[0].output(), ::testing::HasSubstr("rank 1 "));
  CheckpointTrainee loaded(9);
  EXPECT_EQ(resume_checkpoint(folder.path(), loaded.parts()).step, 1);
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("latest", "step-00000001")) << "nothing unfinished is left";
}

}  // namespace
}  // namespace lockstep::train
