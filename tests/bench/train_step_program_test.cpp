// bench/train_step as people start it: what it computes, not how fast.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kSlow = 240s;  // at most, of a step by the reference kernels in a build that optimises little

nlohmann::json row_of(const std::string& dtype) {
  Child child({TRAIN_STEP, "--model", "cifar10-nolrn", "--steps", "1", "--warm-up", "0", "--dtype", dtype, "--json"});
  EXPECT_EQ(child.wait(kSlow), 0) << child.errors();
  return nlohmann::json::parse(child.output());
}

TEST(TrainStepProgram, ComputesInTheTypeThatIsAskedFor) {
  const nlohmann::json full = row_of("float32");
  EXPECT_EQ(full["dtype"], "float32");
  EXPECT_NEAR(full["loss"].get<double>(), std::log(10), 0.3) << "of ten classes, hardly trained";
  for (const char* dtype : {"bfloat16", "float16"}) {
    const nlohmann::json half = row_of(dtype);
    EXPECT_EQ(half["dtype"], dtype) << "of the logits";
    EXPECT_NEAR(half["loss"].get<double>(), full["loss"].get<double>(), 0.05) << dtype;
  }
}

TEST(TrainStepProgram, RefusesATypeThatLayersDoNotHave) {
  Child child({TRAIN_STEP, "--dtype", "half"});
  EXPECT_EQ(child.wait(60s), 2);
  EXPECT_THAT(child.errors(), HasSubstr("'half' is none of float32, bfloat16, float16"));
}

TEST(TrainStepProgram, RefusesFewerThanNoStepsToWarmUp) {
  Child child({TRAIN_STEP, "--warm-up=-1"});
  EXPECT_EQ(child.wait(60s), 2);
  EXPECT_THAT(child.errors(), HasSubstr("--warm-up must not be negative"));
}

}  // namespace
}  // namespace lockstep::testing
