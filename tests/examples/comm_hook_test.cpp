// The example of docs/comm_hooks.md prints the output promised in its opening comment, and the same message sizes on
// other numbers of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

TEST(CommHookExample, PrintsWhatItPromises) {
  const std::string promised = promised_output(COMM_HOOK_SOURCE);
  ASSERT_GT(promised.size(), 80u);
  Child example({LOCKRUN, "-n", "2", COMM_HOOK});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  EXPECT_EQ(example.output(), promised);
}

TEST(CommHookExample, RunsOnFourRanksAndAlone) {
  Child four({LOCKRUN, "-n", "4", COMM_HOOK});
  EXPECT_EQ(four.wait(std::chrono::seconds(60)), 0) << four.errors();
  EXPECT_THAT(four.output(), ::testing::HasSubstr("68 bytes a step"));
  Child alone({COMM_HOOK});
  EXPECT_EQ(alone.wait(std::chrono::seconds(60)), 0) << alone.errors();
}

}  // namespace
}  // namespace lockstep::testing
