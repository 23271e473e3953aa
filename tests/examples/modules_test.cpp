// The example of docs/models.md prints the output promised in its opening comment.
#include <gtest/gtest.h>

#include <string>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

TEST(ModulesExample, PrintsWhatItPromises) {
  const std::string promised = promised_output(MODULES_SOURCE);
  ASSERT_GT(promised.size(), 300u);
  Child example({LOCKRUN, "-n", "2", MODULES});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  EXPECT_EQ(example.output(), promised);
}

TEST(ModulesExample, RunsAlone) {
  Child example({MODULES});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

}  // namespace
}  // namespace lockstep::testing
