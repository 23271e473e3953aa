// Two jobs and one folder of checkpoints: a running job owns the folder, and no job continues from another one's state
// without knowing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "tests/faults/child.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kDeadline(120);
constexpr const char* kRuns = " is running and writes its checkpoints there: ";

class CheckpointJobs : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.path(); }
  std::string sign(const std::string& name) const { return signs_.path() + "/" + name; }

  Child start(const std::vector<std::string>& commands, int ranks = 0) const {
    std::vector<std::string> line;
    if (ranks > 0) line = {LOCKSTEP_LOCKRUN, "--no-fold", "-n", std::to_string(ranks)};
    line.insert(line.end(), {LOCKSTEP_CHECKPOINT_JOB, folder()});
    line.insert(line.end(), commands.begin(), commands.end());
    return Child(line);
  }
  // Runs a job to its end and returns its output.
  std::string run(const std::vector<std::string>& commands, int ranks = 0) {
    Child job = start(commands, ranks);
    EXPECT_EQ(job.wait(kDeadline), 0) << job.errors();
    errors_ = job.errors();
    return job.output();
  }
  void give(const std::string& name) const { std::ofstream(sign(name)).put('.'); }
  // Waits until the job has run `touch=` with that name.
  void await(const std::string& name) const {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!fs::exists(sign(name)) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(fs::exists(sign(name)));
  }
  std::string lineage(const std::string& checkpoint) const {
    return read_json(folder() + "/" + checkpoint + "/manifest.json")["lineage"];
  }
  std::string job_id(const std::string& checkpoint) const {
    return read_json(folder() + "/" + checkpoint + "/manifest.json")["job"]["id"];
  }

  const Folder folder_, signs_;
  std::string errors_;  // of the last job that run() has run
};

TEST_F(CheckpointJobs, ARunningJobKeepsOthersOutOnAllRanks) {
  Child first = start({"prepare", "touch=" + sign("ready"), "wait=" + sign("go on"), "save=1"});
  await("ready");
  for (const char* command : {"save=5", "prepare"}) {
    const std::string output = run({command}, 2);
    for (const char* rank : {"0", "1"})
      EXPECT_THAT(
          output,
          AllOf(HasSubstr(fmt::format("rank {}: {}: ", rank, command)), HasSubstr(kRuns),
                ContainsRegex(fmt::format("\\(process {} on [^,]+, started 2[-0-9]+ [0-9:]+ UTC\\)", first.pid()))));
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 2);
  }
  give("go on");
  EXPECT_EQ(first.wait(kDeadline), 0) << first.errors();
  EXPECT_THAT(first.output(), HasSubstr("save=1: '" + folder() + "/step-00000001'"));
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"latest", "step-00000001"}));
}

// For instance a program that runs twice and never loads.
TEST_F(CheckpointJobs, AJobThatHasEndedIsReplacedWithAWarning) {
  run({"save=7", "save=8"});
  EXPECT_EQ(errors_, "");
  EXPECT_THAT(run({"save=1", "save=2"}), HasSubstr("save=2: '" + folder() + "/step-00000002'"));
  EXPECT_THAT(errors_, AllOf(HasSubstr("warning"), HasSubstr("holds step 8 of job "),
                             HasSubstr("from which this job has not resumed")));
  EXPECT_EQ(errors_.find("from which"), errors_.rfind("from which")) << "once";
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"latest", "step-00000001", "step-00000002"}));
  EXPECT_NE(lineage("step-00000002"), "");
}

TEST_F(CheckpointJobs, AKilledJobLeavesTheFolderToTheNext) {
  Child killed = start({"save=1", "touch=" + sign("ready"), "wait=" + sign("never")});
  await("ready");
  killed.signal(SIGKILL);
  killed.wait(kDeadline);
  EXPECT_THAT(run({"load", "save=2"}), AllOf(HasSubstr("load: step 1"), HasSubstr("save=2: '" + folder())));
  EXPECT_EQ(errors_, "") << "it continues from the other job's checkpoint";
  EXPECT_EQ(lineage("step-00000002"), lineage("step-00000001"));
  EXPECT_NE(job_id("step-00000002"), job_id("step-00000001"));
}

TEST_F(CheckpointJobs, AJobThatResumedDoesNotSaveOverNewerCheckpoints) {
  run({"save=1"});
  Child resumed = start({"load", "touch=" + sign("ready"), "wait=" + sign("go on"), "save=2", "over=2"});
  await("ready");
  EXPECT_THAT(run({"save=9"}), HasSubstr("save=9: '" + folder()));
  give("go on");
  EXPECT_EQ(resumed.wait(kDeadline), 0) << resumed.errors();
  EXPECT_THAT(resumed.output(),
              AllOf(HasSubstr("save=2: " + folder() + ": another job has saved step 9 of job "),
                    HasSubstr("there since this one looked there"), HasSubstr("over=2: '" + folder())));
}

TEST_F(CheckpointJobs, TwoJobsThatFoundNothingDoNotMix) {
  Child first = start({"load", "touch=" + sign("ready"), "wait=" + sign("go on"), "save=2"});
  await("ready");
  run({"load", "save=9"});
  give("go on");
  EXPECT_EQ(first.wait(kDeadline), 0) << first.errors();
  EXPECT_THAT(first.output(), AllOf(HasSubstr("load: none"), HasSubstr("another job has saved step 9 of job ")));
}

TEST_F(CheckpointJobs, AJobThatLostItsFolderNeitherSavesNorLoadsThere) {
  Child first = start({"save=1", "touch=" + sign("ready"), "wait=" + sign("go on"), "save=2", "load"});
  await("ready");
  EXPECT_THAT(run({"over=7"}), HasSubstr("over=7: '" + folder()));
  give("go on");
  EXPECT_EQ(first.wait(kDeadline), 0) << first.errors();
  EXPECT_THAT(first.output(), AllOf(HasSubstr("save=2: " + folder() + ": another job has saved step 7 of job "),
                                    HasSubstr("load: " + folder() + ": its newest checkpoint, step 7 of job "),
                                    HasSubstr("it is no state of this training"), Not(HasSubstr("load: step"))));
}

// For instance an evaluation during the training.
TEST_F(CheckpointJobs, AJobThatOnlyLoadsTakesNoLock) {
  Child training = start({"save=1", "touch=" + sign("ready"), "wait=" + sign("go on"), "save=2"});
  await("ready");
  EXPECT_THAT(run({"load", "load"}), HasSubstr("load: step 1"));
  give("go on");
  EXPECT_EQ(training.wait(kDeadline), 0) << training.errors();
  EXPECT_THAT(training.output(), HasSubstr("save=2: '" + folder()));
}

TEST_F(CheckpointJobs, WithoutLocksOfTheFileSystemTheProcessIsLookedFor) {
  Child first = start({"nolocks", "save=1", "touch=" + sign("ready"), "wait=" + sign("go on")});
  await("ready");
  EXPECT_THAT(run({"nolocks", "save=5"}), HasSubstr(kRuns));
  give("go on");
  EXPECT_EQ(first.wait(kDeadline), 0) << first.errors();
  EXPECT_THAT(run({"nolocks", "load", "save=5"}), HasSubstr("save=5: '" + folder()));
}

// Otherwise each rank would be a job by itself on a second thread, and all would write.
TEST_F(CheckpointJobs, TheDefaultGroupIsTheSameOnEachThread) {
  const std::string output = run({"thread", "prepare", "save=1", "writer", "load"}, 2);
  EXPECT_THAT(output, AllOf(HasSubstr("rank 0: save=1: '" + folder() + "/step-00000001'"),
                            HasSubstr("rank 1: save=1: ''"), HasSubstr("rank 0: writer: writes"),
                            HasSubstr("rank 1: writer: does not write"), HasSubstr("rank 1: load: step 1")));
  fs::remove_all(folder() + "-events");
}

}  // namespace
}  // namespace lockstep::testing
