// Current models do not request new memory once they are warm: buffers come from the device's cache, and the remaining
// heap allocations are the tape's bookkeeping, the same in each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/lib/train_step_models.h"
#include "lockstep/autograd/shapes.h"
#include "tests/ddp/ranks.h"
#include "tests/support/heap_count.h"

namespace lockstep::bench {
namespace {

struct StepMemory {
  std::uint64_t blocks;      // requested by the device's allocator from the system
  std::size_t calls, bytes;  // of operator new on the computing thread
};

class Training {
 public:
  Training(const std::string& name, std::int64_t samples, const std::shared_ptr<ProcessGroup>& group)
      : model_(make_model(name, group->rank())),
        x_(slice(model_.inputs, 0, {.stop = samples})),
        labels_(slice(model_.labels, 0, {.stop = samples})),
        ddp_(*model_.module, group),
        optimizer_(make_optimizer(name, ddp_.parameters(), nullptr)) {}

  StepMemory step() {
    const std::uint64_t blocks = cpu_device().allocator_stats().system_allocations;
    const std::size_t calls = test_support::heap_allocations_by_thread(), bytes = test_support::heap_bytes_by_thread();
    optimizer_->zero_grad();
    nn::cross_entropy(ddp_(x_), labels_).backward();
    optimizer_->step();
    return {cpu_device().allocator_stats().system_allocations - blocks,
            test_support::heap_allocations_by_thread() - calls, test_support::heap_bytes_by_thread() - bytes};
  }

 private:
  TrainStepModel model_;
  Tensor x_, labels_;
  DistributedDataParallel ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

constexpr int kSteps = 5;
constexpr std::size_t kBookkeepingBytes =
    4096;  // larger than any node, list or argument list, and smaller than all but the smallest tensors

std::vector<StepMemory> memory_of_steps(const std::string& name, std::int64_t samples) {
  std::vector<StepMemory> steps;
  testing::expect_all_well(testing::run_ranks(1, "shm", [&](auto group) {
    Training training(name, samples, group);
    for (int i = 0; i < kSteps; ++i) {
      if (i == 2) test_support::refuse_allocations_from(kBookkeepingBytes);
      steps.push_back(training.step());
    }
    test_support::refuse_allocations_from(0);
  }));
  return steps;
}

class TrainStepMemory : public ::testing::TestWithParam<std::pair<const char*, std::int64_t>> {};

TEST_P(TrainStepMemory, IsTheCachesAfterTwoSteps) {
  const std::vector<StepMemory> steps = memory_of_steps(GetParam().first, GetParam().second);
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  EXPECT_GT(steps[0].blocks, 0U) << "the counter does not work";
  for (int i = 2; i < kSteps; ++i) {
    const StepMemory& step = steps[static_cast<std::size_t>(i)];
    EXPECT_EQ(step.blocks, 0U) << "step " << i;
    EXPECT_EQ(step.calls, steps[2].calls) << "step " << i;
    EXPECT_EQ(step.bytes, steps[2].bytes) << "step " << i;
  }
}

std::string name_of_case(const ::testing::TestParamInfo<TrainStepMemory::ParamType>& each) { return each.param.first; }
INSTANTIATE_TEST_SUITE_P(Models, TrainStepMemory,
                         ::testing::Values(std::pair("resnet20", 4), std::pair("gpt", 2), std::pair("cifar10", 4),
                                           std::pair("mlp", 4)),
                         name_of_case);

}  // namespace
}  // namespace lockstep::bench
