// The example prints the output promised in its opening comment.
#include <gtest/gtest.h>

#include <string>

#include "tests/examples/promised_output.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

TEST(CollectivesExample, PrintsWhatItPromises) {
  const std::string promised = promised_output(COLLECTIVES_SOURCE);
  ASSERT_GT(promised.size(), 100u);
  for (const char* transport : {"shm", "tcp"}) {
    Child example({"env", std::string("LOCKSTEP_TRANSPORT=") + transport, LOCKRUN, "-n", "4", COLLECTIVES});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
    EXPECT_EQ(example.output(), promised) << transport;
  }
}

TEST(CollectivesExample, RunsAlone) {
  Child example({COLLECTIVES});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

}  // namespace
}  // namespace lockstep::testing
