// State of the program's own in a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ddp/ranks.h"
#include "tests/support/message_of.h"
#include "tests/train/checkpoint_folder.h"
#include "tests/train/checkpoint_trainee.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;

TEST(ProgramState, TextAndTensorsComeBackOnAllRanks) {
  const Folder folder, empty;
  CheckpointTrainee saved(1);
  const std::vector<float> floats = {1, -0.0F, 3};
  const std::vector<std::int64_t> counts = {1LL << 60};
  ProgramState program{
      "{\"a\": 1}\n\xc3\xa9 \"\\",
      {{"floats", Tensor::from<float>(floats, {3, 1})}, {"counts", Tensor::from<std::int64_t>(counts, {1})}}};
  CheckpointParts parts = saved.parts();
  parts.program = program;
  save_checkpoint(folder.path(), parts);
  testing::expect_all_well(testing::run_ranks(2, "threads", [&](auto group) {
    CheckpointTrainee run(5);
    ProgramState loaded{"of before", {{"of before", Tensor::zeros({1})}}};
    CheckpointParts wanted = run.parts(0);
    wanted.group = group;
    wanted.program = loaded;
    ASSERT_TRUE(load_checkpoint(group->rank() == 0 ? folder.path() : empty.path(), wanted));
    EXPECT_EQ(loaded.text, program.text);
    ASSERT_EQ(loaded.tensors.size(), 2U);
    if (loaded.tensors[0].name != "floats") std::swap(loaded.tensors[0], loaded.tensors[1]);
    EXPECT_EQ(loaded.tensors[0].name + loaded.tensors[1].name, "floatscounts");
    EXPECT_EQ(loaded.tensors[0].tensor.shape(), (Shape{3, 1}));
    EXPECT_THAT(loaded.tensors[0].tensor.template span<float>(), ElementsAre(1, 0, 3));
    EXPECT_THAT(loaded.tensors[1].tensor.template span<std::int64_t>(), ElementsAre(counts[0]));
  }));
}

TEST(ProgramState, IsEmptyWhereThereIsNoneAndIsNotNeeded) {
  const Folder folder;
  CheckpointTrainee run(1);
  save_checkpoint(folder.path(), run.parts());
  ProgramState program{"of before"};
  CheckpointParts parts = run.parts();
  parts.program = program;
  ASSERT_TRUE(load_checkpoint(folder.path(), parts));
  EXPECT_EQ(program.text, "");
  program = {"text", {{"t", Tensor::zeros({2})}}};
  save_checkpoint(folder.path(), parts);
  EXPECT_TRUE(load_checkpoint(folder.path(), run.parts())) << "a load may leave it there";
}

TEST(ProgramState, MustBeAskedForByAllRanksOrNone) {
  const Folder folder;
  CheckpointTrainee saved(1);
  save_checkpoint(folder.path(), saved.parts());
  const auto failures = testing::run_ranks(2, "threads", [&](auto group) {
    CheckpointTrainee run(5);
    ProgramState program;
    CheckpointParts parts = run.parts(0);
    parts.group = group;
    if (group->rank() == 1) parts.program = program;
    load_checkpoint(folder.path(), parts);
  });
  EXPECT_THAT(failures, ::testing::Each(HasSubstr("rank 1 has a program's state")));
}

TEST(ProgramState, TextThatIsNotUtf8IsRefusedAndNothingIsLeft) {
  const Folder folder;
  CheckpointTrainee run(1);
  ProgramState program{"\xff"};
  CheckpointParts parts = run.parts();
  parts.program = program;
  EXPECT_THAT(message_of([&] { save_checkpoint(folder.path(), parts); }), HasSubstr("is not UTF-8"));
  EXPECT_THAT(folder.names(), ElementsAre());
}

}  // namespace
}  // namespace lockstep::train
