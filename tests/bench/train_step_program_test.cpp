// bench/train_step as users run it: its results, not its speed.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kSlow = 240s;  // the most that a step takes with the reference kernels in an unoptimised build

nlohmann::json row_of(const std::string& dtype) {
  Child child({TRAIN_STEP, "--model", "cifar10-nolrn", "--steps", "1", "--warm-up", "0", "--dtype", dtype, "--json"});
  EXPECT_EQ(child.wait(kSlow), 0) << child.errors();
  return nlohmann::json::parse(child.output());
}

TEST(TrainStepProgram, ComputesInTheRequestedType) {
  const nlohmann::json full = row_of("float32");
  EXPECT_EQ(full["dtype"], "float32");
  EXPECT_NEAR(full["loss"].get<double>(), std::log(10), 0.3) << "ten classes, almost untrained";
  for (const char* dtype : {"bfloat16", "float16"}) {
    const nlohmann::json half = row_of(dtype);
    EXPECT_EQ(half["dtype"], dtype) << "the type of the logits";
    EXPECT_NEAR(half["loss"].get<double>(), full["loss"].get<double>(), 0.05) << dtype;
  }
}

TEST(TrainStepProgram, RefusesATypeThatLayersDoNotHave) {
  Child child({TRAIN_STEP, "--dtype", "half"});
  EXPECT_EQ(child.wait(60s), 2);
  EXPECT_THAT(child.errors(), HasSubstr("expected float32, bfloat16, float16, fp32, bf16 or fp16, got 'half'"));
}

TEST(TrainStepProgram, RefusesANegativeWarmUp) {
  Child child({TRAIN_STEP, "--warm-up=-1"});
  EXPECT_EQ(child.wait(60s), 2);
  EXPECT_THAT(child.errors(), HasSubstr("--warm-up must not be negative"));
}

}  // namespace
}  // namespace lockstep::testing
