// The plan of model_parallel: how layers are cut into stages, and the order of forward and backward in each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "src/train/strategies/model_parallel/pipeline_plan.h"
#include "tests/support/message_of.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;

std::string text_of(const std::vector<PipelineOp>& ops) {
  std::string text;
  for (const PipelineOp& op : ops) text += (op.forward ? "F" : "B") + std::to_string(op.micro_batch) + " ";
  return text;
}

TEST(PipelinePlan, LayersAreCutSoThatTheLargestStageIsSmall) {
  EXPECT_THAT(split_layers({1, 1, 1, 1}, 2), ElementsAre(2, 2));
  EXPECT_THAT(split_layers({9, 1, 1, 1}, 2), ElementsAre(1, 3));
  EXPECT_THAT(split_layers({1, 1, 1, 9}, 2), ElementsAre(3, 1));
  EXPECT_THAT(split_layers({4, 0, 0, 5, 0, 6}, 3), ElementsAre(1, 3, 2));
  EXPECT_THAT(split_layers({0, 0, 0}, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(split_layers({5}, 1), ElementsAre(1));
}

TEST(PipelinePlan, OneForwardOneBackward) {
  EXPECT_EQ(text_of(one_forward_one_backward(0, 3, 4)), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(text_of(one_forward_one_backward(1, 3, 4)), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(text_of(one_forward_one_backward(2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3 ");
  EXPECT_EQ(text_of(one_forward_one_backward(0, 4, 2)), "F0 F1 B0 B1 ") << "fewer micro-batches than stages";
  EXPECT_EQ(text_of(one_forward_one_backward(0, 1, 2)), "F0 B0 F1 B1 ");
}

// Whoever has not got what it needs waits: no plan may wait for ever, and none keeps more activations than it says.
TEST(PipelinePlan, EndsAndKeepsAtMostTheActivationsOfTheStagesBehind) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int micro_batches = 1; micro_batches <= 7; ++micro_batches) {
      std::vector<std::vector<PipelineOp>> plans;
      for (int stage = 0; stage < stages; ++stage)
        plans.push_back(one_forward_one_backward(stage, stages, micro_batches));
      std::set<std::tuple<int, bool, int>> done;
      std::vector<std::size_t> next(plans.size(), 0);
      for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < stages; ++stage) {
          const auto at = static_cast<std::size_t>(stage);
          if (next[at] == plans[at].size()) continue;
          const PipelineOp op = plans[at][next[at]];
          const bool ready = op.forward
                                 ? stage == 0 || done.count({stage - 1, true, op.micro_batch}) != 0
                                 : done.count({stage, true, op.micro_batch}) != 0 &&
                                       (stage + 1 == stages || done.count({stage + 1, false, op.micro_batch}) != 0);
          if (!ready) continue;
          done.insert({stage, op.forward, op.micro_batch});
          ++next[at];
          moved = true;
        }
      }
      EXPECT_EQ(done.size(), static_cast<std::size_t>(2 * stages * micro_batches))
          << stages << " stages, " << micro_batches << " micro-batches";
      for (int stage = 0; stage < stages; ++stage) {
        int kept = 0;
        for (const PipelineOp& op : plans[static_cast<std::size_t>(stage)]) {
          kept += op.forward ? 1 : -1;
          EXPECT_LE(kept, stages - stage);
        }
      }
    }
}

TEST(PipelinePlan, TheBubble) {
  EXPECT_EQ(pipeline_bubble(1, 4), 0);
  EXPECT_DOUBLE_EQ(pipeline_bubble(2, 2), 1.0 / 3);
  EXPECT_DOUBLE_EQ(pipeline_bubble(4, 12), 0.2);
}

}  // namespace
}  // namespace lockstep::train
