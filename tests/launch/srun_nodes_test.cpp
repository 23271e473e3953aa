// lockrun's nodes from srun's variables: real ones of `srun -N 2 --ntasks-per-node=1`.
#include "src/launch/launchers/srun_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/message_of.h"

namespace lockstep::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

const Variables kTask = {{"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "1"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                         {"SLURM_STEP_NODELIST", "n[0-1]"},
                         {"MASTER_PORT", "1234"}};

Words completed(const Words& flags, const Variables& extra = {}, const Variables& task = kTask) {
  return launch::with_srun_nodes(flags, [&](const char* name) -> std::optional<std::string> {
    for (const Variables* variables : {&extra, &task})
      if (const auto found = variables->find(name); found != variables->end()) return found->second;
    return std::nullopt;
  });
}

TEST(SrunNodes, AreTakenFromItsVariables) {
  EXPECT_THAT(completed({"-n", "4"}), ElementsAre("-n", "4", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n0",
                                                  "--master-port", "1234"));
}

TEST(SrunNodes, FlagsComeFirst) {
  EXPECT_THAT(completed({"--nnodes=2", "--master-addr=head"}),
              ElementsAre("--nnodes=2", "--master-addr=head", "--node-rank", "1"));
  for (const Words& own : {Words{"--nnodes", "1"}, Words{"--nnodes=1"}, Words{"--nnodes", "1:1"}, Words{"--standalone"},
                           Words{"--nnodes", "2", "--node-rank", "0"}})
    EXPECT_EQ(completed(own), own);
  for (const Words& question : {Words{"--help"}, Words{"-h"}, Words{"--version"}})
    EXPECT_EQ(completed(question), question);
}

TEST(SrunNodes, ThereAreNoneWithoutAStepOfSeveralTasks) {
  EXPECT_THAT(completed({"-n", "4"}, {}, {}), ElementsAre("-n", "4"));
  EXPECT_THAT(completed({"-n", "4"}, {{"SLURM_STEP_NUM_TASKS", "1"}}), ElementsAre("-n", "4"));
}

TEST(SrunNodes, AreNotThoseOfALauncherInBetween) {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"})
    EXPECT_THAT(completed({"-n", "4"}, {{name, "0"}}), ElementsAre("-n", "4")) << name;
}

TEST(SrunNodes, SeveralLockrunsOnANodeMustSayWhatTheyAre) {
  const Variables crowd = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  EXPECT_THAT(
      message_of([&] {
        completed({"-n", "4"}, crowd);
      }),
      AllOf(HasSubstr("srun has started 4 lockruns"), HasSubstr("--ntasks-per-node=1"), HasSubstr("--nnodes 1")));
  EXPECT_THAT(completed({"--nnodes", "1"}, crowd), ElementsAre("--nnodes", "1"));
}

}  // namespace
}  // namespace lockstep::launcher
