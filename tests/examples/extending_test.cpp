// The example of docs/tutorial.md prints the output promised in its opening comment.
#include <gtest/gtest.h>

#include <string>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

TEST(ExtendingExample, PrintsWhatItPromises) {
  const std::string promised = promised_output(EXTENDING_SOURCE);
  ASSERT_GT(promised.size(), 80u);
  Child example({LOCKRUN, "-n", "2", EXTENDING});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
  EXPECT_EQ(example.output(), promised);
}

TEST(ExtendingExample, RunsAlone) {
  Child example({EXTENDING});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

}  // namespace
}  // namespace lockstep::testing
