#include "src/core/base/known_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace lockstep::env {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(KnownVariables, AreAllOfTheHeader) {
  std::ifstream file(LOCKSTEP_ENVIRONMENT_HEADER);
  ASSERT_TRUE(file) << LOCKSTEP_ENVIRONMENT_HEADER;
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find("= \"LOCKSTEP_");
    if (begin == std::string::npos) continue;
    const std::string name = line.substr(begin + 3, line.find('"', begin + 3) - begin - 3);
    if (name != "LOCKSTEP_") names.push_back(name);
  }
  EXPECT_GE(names.size(), 30u);
  EXPECT_THAT(known_variables(), ::testing::UnorderedElementsAreArray(names));
}

TEST(KnownVariables, AMisspeltOneIsNamedWithTheNearest) {
  EXPECT_THAT(doubts_about({"PATH=/bin", "LOCKSTEP_TIMEOUT=5"}),
              ElementsAre(AllOf(HasSubstr("LOCKSTEP_TIMEOUT is set"), HasSubstr("did you mean LOCKSTEP_TIMEOUT_S?"))));
  EXPECT_THAT(doubts_about({"LOCKSTEP_TRANSPROT="}), ElementsAre(HasSubstr("did you mean LOCKSTEP_TRANSPORT?")));
  EXPECT_THAT(doubts_about({"LOCKSTEP_LOGLEVEL=info", "LOCKSTEP_FLIGHTDIR=x"}),
              ElementsAre(HasSubstr("LOCKSTEP_LOG_LEVEL?"), HasSubstr("LOCKSTEP_FLIGHT_DIR?")));
}

TEST(KnownVariables, OneThatIsLikeNoneIsNamedWithoutAGuess) {
  EXPECT_THAT(doubts_about({"LOCKSTEP_QUUX=1"}),
              ElementsAre(AllOf(HasSubstr("LOCKSTEP_QUUX is set"), Not(HasSubstr("did you mean")))));
}

// The variables of a Service called lockstep-master.
TEST(KnownVariables, ThoseOfKubernetesAreNoDoubt) {
  EXPECT_THAT(
      doubts_about({"LOCKSTEP_MASTER_SERVICE_HOST=10.0.0.11", "LOCKSTEP_MASTER_SERVICE_PORT=80",
                    "LOCKSTEP_MASTER_SERVICE_PORT_HTTP=80", "LOCKSTEP_MASTER_PORT=tcp://10.0.0.11:80",
                    "LOCKSTEP_MASTER_PORT_80_TCP=tcp://10.0.0.11:80", "LOCKSTEP_MASTER_PORT_80_TCP_ADDR=10.0.0.11"}),
      IsEmpty());
  EXPECT_THAT(doubts_about({"LOCKSTEP_MASTER_PORT=80"}), ElementsAre(HasSubstr("LOCKSTEP_MASTER_PORT")));
}

TEST(KnownVariables, RightOnesAndThoseOfTestsAreNoDoubt) {
  EXPECT_THAT(doubts_about({"LOCKSTEP_TIMEOUT_S=5", "LOCKSTEP_TEST_PYTHON=python3", "LOCKSTEP_FUZZ_SEED=7", "RANK=0",
                            "lockstep_x=1"}),
              IsEmpty());
}

}  // namespace
}  // namespace lockstep::env
