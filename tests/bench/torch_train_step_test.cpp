// bench/gpu/torch_train_step.py, which scripts/bench-gpu compares ours with, over a PyTorch that is made up
// (fake_torch).
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::unique_ptr<Child> torch_train_step(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"python3", SCRIPTS "/../bench/gpu/torch_train_step.py"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Child>(command,
                                 ChildOptions{.environment = {{"PYTHONPATH", SCRIPTS "/../tests/bench/fake_torch"},
                                                              {"PYTHONDONTWRITEBYTECODE", "1"}}});
}

// As ours are: one by one, PyTorch's small products would take the time that Python needs to queue them.
TEST(TorchTrainStep, SmallProductsAreReplayedAsAGraphAndLargeOnesAreNot) {
  const auto small = torch_train_step({"--linear", "x", "10", "10", "20"});  // 2 us on the device
  ASSERT_EQ(small->wait(60s), 0) << small->errors();
  EXPECT_THAT(small->errors(), HasSubstr("a graph of 66 calls")) << "2 ms of calls of 30 us";
  EXPECT_NEAR(nlohmann::json::parse(small->output().substr(0, small->output().find('\n')))["ms"].get<double>(), 0.002,
              1e-9);
  const auto large = torch_train_step({"--linear", "x", "100", "10", "100"});  // 100 us
  ASSERT_EQ(large->wait(60s), 0) << large->errors();
  EXPECT_EQ(large->errors(), "");
  EXPECT_NEAR(nlohmann::json::parse(large->output().substr(0, large->output().find('\n')))["ms"].get<double>(), 0.1,
              1e-9);
}

// Those of bench/lib/train_step_models.cpp.
TEST(TorchTrainStep, EveryModelHasOurOptimizerAndBatch) {
  struct Model {
    const char *name, *optimizer;
    int batch;
  };
  for (const auto& [name, optimizer, batch] :
       {Model{"cifar10", "SGD fused=True lr=0.01\n", 128},
        {"cifar10-nolrn", "SGD fused=True lr=0.01\n", 128},
        {"mlp", "SGD fused=True lr=0.01\n", 64},
        {"resnet20", "SGD fused=True lr=0.01 momentum=0.9 weight_decay=0.0001\n", 64},
        {"gpt", "AdamW fused=True lr=0.001 weight_decay=0.1\n", 8}}) {
    const auto child = torch_train_step({"--model", name, "--rounds", "1", "--steps", "2"});
    ASSERT_EQ(child->wait(60s), 0) << child->errors();
    EXPECT_EQ(child->errors(), optimizer) << name;
    EXPECT_NEAR(nlohmann::json::parse(child->output())["samples_per_s"].get<double>(), batch * 1000.0, 1e-6)
        << "of steps of 1 ms";
  }
}

}  // namespace
}  // namespace lockstep::testing
