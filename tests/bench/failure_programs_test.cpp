// bench/peers/restart and bench/peers/save with our programs and a fake torchrun: their output, not their times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// As torchrun would run restart_ddp.py and save_dcp.py: every step after a death comes 2 s later, after an attempt that
// does not connect.
constexpr const char* kTorchrun = R"(
while [ $# -gt 0 ]; do [ "$1" = --folder ] && folder=$2; case "$1" in *save_dcp.py) saves=1 ;; esac; shift; done
[ -z "$saves" ] || { echo '{"program": "pytorch", "step_ms": 10, "during_save_ms": 15, "call_ms": 5, "write_ms": 100}'; exit 0; }
echo '{"step": 7, "attempt": 0, "ns": 1000000000}
{"killed": 7, "attempt": 0, "ns": 2000000000}
{"started": 0, "attempt": 1, "ns": 2500000000}
{"started": 0, "attempt": 2, "ns": 3000000000}
{"step": 6, "attempt": 2, "ns": 4000000000}' > "$folder/events.1"
)";

class FailurePrograms : public ::testing::Test {
 protected:
  FailurePrograms() : fake_("failure-programs") { fake_.program("peers/venv/bin/torchrun", kTorchrun); }
  static std::vector<std::string> command(const std::string& script, const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"python3", PEERS "/" + script, "--build", BUILD_FOLDER, "--rounds", "1",
                                      "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  ChildOptions options() const { return {.environment = {{"PEERS_BUILD", (fake_.folder() / "peers").string()}}}; }

 private:
  FakeBuild fake_;
};

TEST_F(FailurePrograms, RestartCountsFromTheDeathToTheNextStep) {
  Child child(command("restart", {"--failures", "2"}), options());
  ASSERT_EQ(child.wait(std::chrono::seconds(120)), 0) << child.errors();
  const json result = json::parse(child.output());
  EXPECT_EQ(result["deaths"]["lockrun"], 2);
  EXPECT_GT(result["seconds"]["lockrun"]["total"], result["seconds"]["lockrun"]["until_start"]);
  EXPECT_GT(result["seconds"]["lockrun"]["until_start"], 0);
  EXPECT_EQ(result["seconds"]["torchrun"], json({{"total", 2.0}, {"until_start", 0.5}}));
  EXPECT_EQ(result["failed_again"]["torchrun"], 1);
  EXPECT_EQ(result["failed_again"]["lockrun"], 0);
}

// A disk may be so fast that no step of such a small state falls into the save.
TEST_F(FailurePrograms, SaveComparesStepsWithAndWithout) {
  Child child(command("save", {"--mb", "60", "--saves", "1"}), options());
  const int code = child.wait(std::chrono::seconds(120));
  if (code == 1) {
    EXPECT_THAT(child.errors(), HasSubstr("lockstep made no complete step while a checkpoint was written"));
    return;
  }
  ASSERT_EQ(code, 0) << child.errors();
  const json result = json::parse(child.output());
  EXPECT_EQ(result["growth"]["dcp.async_save"], 0.5);
  for (const char* column : {"step_ms", "during_save_ms", "call_ms", "write_ms"})
    EXPECT_GT(result["ms"]["lockstep"][column], 0) << column;
}

TEST(FailureProgramsMistakes, AreNamed) {
  for (const char* script : {"restart", "save"}) {
    Child child({"python3", std::string(PEERS "/") + script}, {.environment = {{"PEERS_BUILD", "/nowhere"}}});
    EXPECT_EQ(child.wait(), 1);
    EXPECT_THAT(child.errors(), HasSubstr("/nowhere/venv/bin/torchrun does not exist: run bench/peers/setup first"));
  }
}

}  // namespace
}  // namespace lockstep::testing
