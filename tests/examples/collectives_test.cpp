// The example prints what its opening comment says.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

std::string promised_output() {
  std::ifstream source(COLLECTIVES_SOURCE);
  std::string text;
  for (std::string line; std::getline(source, line) && line.rfind("//", 0) == 0;)
    if (line.rfind("//   [0]", 0) == 0) text += line.substr(5) + "\n";
  return text;
}

TEST(CollectivesExample, PrintsWhatItPromises) {
  ASSERT_GT(promised_output().size(), 100u);
  for (const char* transport : {"shm", "tcp"}) {
    Child example({"env", std::string("LOCKSTEP_TRANSPORT=") + transport, LOCKRUN, "-n", "4", COLLECTIVES});
    EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
    EXPECT_EQ(example.output(), promised_output()) << transport;
  }
}

TEST(CollectivesExample, RunsAlone) {
  Child example({COLLECTIVES});
  EXPECT_EQ(example.wait(std::chrono::seconds(60)), 0) << example.errors();
}

}  // namespace
}  // namespace lockstep::testing
