// A save is one sequence of steps on all ranks: if any rank fails in any step, all ranks throw, nothing unfinished is
// left, and the older checkpoint still loads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/core/base/error_of_peer.h"
#include "src/train/checkpoint/checkpoint_plan.h"
#include "tests/ddp/ranks.h"
#include "tests/ddp/zero_trainee.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

using checkpoint::CallGroup;
using checkpoint::Results;
using checkpoint::SavePlan;
using checkpoint::SaveRun;
using checkpoint::SaveStep;
using testing::Folder;
using ::testing::HasSubstr;
using testing::ZeroTrainee;

constexpr const char* kFault = "the test's fault";

struct Fault {
  std::size_t step = 0;
  int rank = 0;
  bool acts_first = false;  // this rank has done its part of the step when it fails
};

void add_fault(SavePlan& plan, const Fault& fault) {
  if (plan.group.rank() != fault.rank) return;
  SaveStep& step = plan.steps.at(fault.step);
  step.act = [act = step.act, fault](SaveRun& run, const Results& before) -> std::string {
    if (fault.acts_first) act(run, before);
    throw FileError("{}", kFault);
  };
}

CheckpointParts parts_at(ZeroTrainee& trainee, const std::shared_ptr<ProcessGroup>& group, std::int64_t step) {
  return {.model = trainee.net, .optimizer = *trainee.optimizer, .step = step, .group = group};
}

void expect_error_of(const Fault& fault, const SavePlan& plan) {
  bool is_of_peer = false;
  std::string message = "nothing was thrown";
  try {
    run_save(plan);
  } catch (const FileErrorOfPeer& error) {
    is_of_peer = true;
    message = error.what();
  } catch (const FileError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr(fmt::format("save_checkpoint: rank {}: {}", fault.rank, kFault)));
  EXPECT_EQ(is_of_peer, plan.group.rank() != fault.rank);
}

// Saves steps 1, 2 with the fault, and 3, on two ranks.
void save_with(const Fault& fault, bool is_sliced) {
  const Folder folder;
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](auto group) {
    ZeroTrainee trainee(group, "adamw", is_sliced);
    const auto parts = [&](std::int64_t step) { return parts_at(trainee, group, step); };
    save_checkpoint(folder.path(), parts(1));

    const CheckpointParts second = parts(2);
    const CallGroup call(second);
    SavePlan plan = checkpoint::plan_save(call, second, folder.path());
    const bool is_last = fault.step + 1 == plan.steps.size();
    add_fault(plan, fault);
    expect_error_of(fault, plan);
    group->barrier();

    // Unless the state is sliced, rank 0 needs no other rank to put the checkpoint in place.
    const bool is_in_place = fault.rank == 0 ? is_last && fault.acts_first : is_last || !is_sliced;
    EXPECT_EQ(resume_checkpoint(folder.path(), parts(0)).step, is_in_place ? 2 : 1);
    EXPECT_EQ(resume_checkpoint(folder.path() + "/step-00000001", parts(0)).step, 1);
    if (group->rank() == 0) {
      EXPECT_EQ(folder.names().size(), is_in_place ? 3u : 2u) << "what is unfinished is removed";
    }
    group->barrier();

    save_checkpoint(folder.path(), parts(3));
    EXPECT_EQ(resume_checkpoint(folder.path(), parts(0)).step, 3);
  }));
}

TEST(CheckpointSteps, AFaultOfAnyRankInAnyStepIsAnErrorOfAllRanks) {
  for (const bool is_sliced : {false, true})
    for (std::size_t step = 0; step < checkpoint::save_steps().size(); ++step)
      for (const int rank : {0, 1})
        for (const bool acts_first : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, step {}, rank {}, {} its part", is_sliced ? "sliced" : "not sliced",
                                   checkpoint::save_steps()[step].name, rank, acts_first ? "after" : "before"));
          save_with({step, rank, acts_first}, is_sliced);
        }
}

}  // namespace
}  // namespace lockstep::train
