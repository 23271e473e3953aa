// The training steps of scripts/bench-gpu: contestants that are fakes take turns.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Compares every precision, eager and in graph mode, with PyTorch's modes in the same type, and images in float32 in
// both memory formats. The fake times identify how the programs were called.
TEST(BenchGpuSteps, ComparesEveryPrecisionWithPyTorchsOwn) {
  const FakeBuild fake("bench-gpu-precisions-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(case "$*" in
*"--dtype bfloat16"*) ms=2 ;;
*"--dtype float32"*) ms=$((4 - LOCKSTEP_TF32)) ;;
esac
case "$*" in *--graph*) ms=$ms.5 ;; esac
echo '{"ready": true}'
while read -r line; do echo "{\"step_ms\": $ms}"; done)");
  const std::string python = fake.program("python", R"([ "$1" = -c ] && exit 0
case "$*" in
*"--memory-format contiguous"*) ms=7 ;;
*"--mode compile "*"--precision bf16"*) ms=3 ;;
*"--precision bf16"*) ms=8 ;;
*) ms=9 ;;
esac
echo '{"ready": true}'
while read -r line; do echo "{\"step_ms\": $ms}"; done)");
  Child bench(script("bench-gpu", {"--only", "train_step", "--rounds", "2", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  const auto document = nlohmann::json::parse(std::ifstream(file));
  EXPECT_TRUE(document["not_measured"].empty()) << document["not_measured"];
  ASSERT_EQ(document["train_step"].size(), 15U) << "five models in three precisions";
  const std::map<std::string, double> ours = {{"float32", 4}, {"tf32", 3}, {"bf16", 2}};
  for (const auto& row : document["train_step"]) {
    const std::string precision = row["precision"];
    const auto& contestants = row["contestants"];
    const bool has_images = row["model"] != "mlp" && row["model"] != "gpt", both = has_images && precision != "bf16";
    ASSERT_EQ(contestants.size(), both ? 8U : 5U) << row;
    for (const char* contiguous : {"pytorch eager contiguous", "pytorch compile contiguous"})
      EXPECT_EQ(contestants.value(contiguous, nlohmann::json())["step_ms"], both ? nlohmann::json(7) : nlohmann::json())
          << row;
    EXPECT_EQ(contestants["lockstep"]["step_ms"], ours.at(precision)) << row;
    EXPECT_EQ(contestants["lockstep graph"]["step_ms"], ours.at(precision) + 0.5) << row;
    EXPECT_EQ(contestants["pytorch eager"]["step_ms"], precision == "bf16" ? 8 : 9) << row;
    EXPECT_EQ(contestants["pytorch compile"]["step_ms"], precision == "bf16" ? 3 : 9) << row;
    EXPECT_EQ(contestants["pytorch compile-graphs"]["step_ms"], precision == "bf16" ? 8 : 9) << row;
    EXPECT_TRUE(row["missing"].empty()) << row;
    const double best = both ? 7 : precision == "bf16" ? 3 : 9;
    EXPECT_NEAR(row["times_pytorchs_best"], best / ours.at(precision), 1e-3) << row;
  }
}

// A contestant never finishes compiling. The other measurements are still written, as soon as they are available, but
// nobody knows PyTorch's best without it.
TEST(BenchGpuSteps, WritesEachRowAndListsContestantsThatDoNotAnswer) {
  const FakeBuild fake("bench-gpu-late-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(echo '{"ready": true}'
while read -r line; do echo '{"step_ms": 1}'; done)");
  fake.program("bench/operators",
               R"(echo '{"operator": "linear 64", "ms": 1, "gflops": 5, "gbps": 0, "share_percent": 100}'
touch "$0.first"; sleep 600)");
  const std::string python = fake.program("python", R"([ "$1" = -c ] && exit 0
case "$*" in *"--mode compile "*) sleep 600 ;; esac
echo '{"ready": true}'
while read -r line; do echo '{"step_ms": 2}'; done)");
  Child bench(script("bench-gpu",
                     {"--only", "train_step", "kernels", "--models", "mlp", "--precisions", "float32", "--torch-modes",
                      "eager", "compile", "--time-limit", "15", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
  EXPECT_THAT(bench.output(), HasSubstr("not measured: train_step mlp float32, pytorch compile: "));
  EXPECT_THAT(bench.output(), HasSubstr("not measured: kernels: "));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(document["not_measured"].size(), 2U) << document["not_measured"];
  ASSERT_EQ(document["train_step"].size(), 1U);
  const auto& row = document["train_step"][0];
  EXPECT_EQ(row["contestants"]["pytorch eager"]["step_ms"], 2) << row;
  EXPECT_TRUE(row["times_pytorchs_best"].is_null()) << row;
  EXPECT_EQ(row["missing"].size(), 1U) << row;
  EXPECT_THAT(row["missing"]["pytorch compile"], HasSubstr("gave no answer in time")) << row;
  EXPECT_THAT(bench.output(), HasSubstr("no ratio to PyTorch's best without pytorch compile\n"));
  ASSERT_EQ(document["kernels"].size(), 1U) << "the row printed before the time limit";
}

// The contestant answers the first round and dies in the second.
TEST(BenchGpuSteps, AContestantThatFailsLateCostsNoRow) {
  const FakeBuild fake("bench-gpu-dies-");
  const std::string file = fake.folder() / "out.json";
  const std::string round = R"(echo '{"ready": true}'; read -r line; echo '{"step_ms": 1}'; read -r line; )";
  fake.program("bench/train_step", round + R"(echo '{"step_ms": 3}'; read -r line)");
  const std::string python = fake.program("python", "[ \"$1\" = -c ] && exit 0\n" + round + "exit 3");
  Child bench(script("bench-gpu", {"--only", "train_step", "--models", "mlp", "--precisions", "float32",
                                   "--torch-modes", "eager", "--rounds", "2", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(),
              ContainsRegex("not measured: train_step mlp float32, pytorch eager: round 2: .* ended with 3"));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(document["train_step"].size(), 1U) << document["not_measured"];
  const auto& contestants = document["train_step"][0]["contestants"];
  EXPECT_EQ(contestants["lockstep"]["rounds_step_ms"].size(), 2U) << contestants;
  EXPECT_FALSE(contestants.contains("pytorch eager")) << contestants;
  EXPECT_THAT(document["train_step"][0]["missing"]["pytorch eager"], HasSubstr("round 2: "));
  EXPECT_TRUE(document["train_step"][0]["times_pytorchs_best"].is_null());
}

// A contestant that compiles or tunes while another one loads the GPU chooses badly, and a round next to it would be
// slow.
TEST(BenchGpuSteps, OneProgramAtATimeCompilesAndARowEndsBeforeTheNext) {
  const FakeBuild fake("bench-gpu-turns-");
  const std::string file = fake.folder() / "out.json", folder = fake.folder();
  const std::string contestant = "cd " + folder + R"(
case "$*" in *"--model mlp"*) row=mlp ;; *) row=cifar10 ;; esac
[ $row = mlp ] && for pid in $(cat pids); do kill -0 $pid 2>/dev/null && echo "process $pid is still there" >> log; done
[ $row = cifar10 ] && echo $$ >> pids
echo "begin $row" >> log; sleep 0.2; echo "ready $row" >> log; echo '{"ready": true}'
while read -r line; do echo "round $row" >> log; echo '{"step_ms": 1}'; done)";
  fake.program("bench/train_step", contestant);
  const std::string python = fake.program("python", "[ \"$1\" = -c ] && exit 0\n" + contestant);
  Child bench(script("bench-gpu", {"--only", "train_step", "--models", "cifar10", "mlp", "--precisions", "float32",
                                   "--torch-modes", "eager", "--rounds", "2", "--python", python, "--output", file}),
              {.environment = {{"BUILD", folder}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  std::string expected;
  for (const auto& [row, contestants] : std::vector<std::pair<std::string, int>>{{"cifar10", 4}, {"mlp", 3}}) {
    for (int i = 0; i < contestants; ++i) expected += "begin " + row + "\nready " + row + "\n";
    for (int i = 0; i < 2 * contestants; ++i) expected += "round " + row + "\n";
  }
  std::ifstream log(fake.folder() / "log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}), expected);
}

// A row needs 4 s of the 6 that there are.
TEST(BenchGpuSteps, ListsRowsThatDoNotFit) {
  const FakeBuild fake("bench-gpu-rows-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(sleep 2; echo '{"ready": true}'
while read -r line; do echo '{"step_ms": 1}'; done)");
  Child bench(script("bench-gpu", {"--only", "train_step", "--precisions", "float32", "--torch-modes", "--rounds", "2",
                                   "--time-limit", "6", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: train_step gpt float32: [0-9] s are left of its share of "
                                            "--time-limit 6, and the quickest row took [4-6] s\n"));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(document["train_step"].size(), 1U) << document["train_step"];
  EXPECT_EQ(document["not_measured"].size(), 4U) << document["not_measured"];
}

// One of our programs takes more than half of the time, and one fails for another model. Neither costs a row.
TEST(BenchGpuSteps, OurProgramsMayStartLate) {
  const FakeBuild fake("bench-gpu-ours-late-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(case "$*" in
*--graph*) ;;
*"--model cifar10 "*) exit 3 ;;
*) sleep 12 ;;
esac
echo '{"ready": true}'
while read -r line; do echo '{"step_ms": 1}'; done)");
  Child bench(script("bench-gpu", {"--only", "train_step", "--models", "cifar10", "mlp", "--precisions", "float32",
                                   "--torch-modes", "--rounds", "1", "--time-limit", "20", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: train_step cifar10 float32, lockstep: .* ended with 3"));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(document["not_measured"].size(), 1U) << document["not_measured"];
  ASSERT_EQ(document["train_step"].size(), 2U) << document["not_measured"];
  EXPECT_FALSE(document["train_step"][0]["contestants"].contains("lockstep"));
  EXPECT_TRUE(document["train_step"][0]["contestants"].contains("lockstep graph"));
  EXPECT_EQ(document["train_step"][1]["contestants"].size(), 2U) << document["train_step"][1];
}

// Rounds after the first are made only while there is time.
TEST(BenchGpuSteps, SkipsRoundsRatherThanRows) {
  const FakeBuild fake("bench-gpu-rounds-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(echo '{"ready": true}'
while read -r line; do sleep 2; echo '{"step_ms": 1}'; done)");
  Child bench(script("bench-gpu", {"--only", "train_step", "--precisions", "float32", "--torch-modes", "--rounds", "50",
                                   "--time-limit", "40", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  const auto document = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(document["train_step"].size(), 5U) << document["not_measured"];
  for (const auto& row : document["train_step"])
    EXPECT_LT(row["contestants"]["lockstep"]["rounds_step_ms"].size(), 25U) << row;
}

TEST(BenchGpuSteps, SaysOnceThatThereIsNoPyTorch) {
  const std::string file = ::testing::TempDir() + "bench-gpu-torch-" + std::to_string(::getpid()) + ".json";
  Child bench(script("bench-gpu", {"--device", "cpu", "--tiny", "--python", "/bin/false", "--models", "mlp", "--only",
                                   "train_step", "--output", file}),
              {.environment = {{"BUILD", BUILD_FOLDER}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  const auto document = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  ASSERT_EQ(document["not_measured"].size(), 1U) << document["not_measured"];
  EXPECT_EQ(document["train_step"].size(), 1U) << "only float32 on the CPU";
  EXPECT_EQ(document["rounds"], 1);
  EXPECT_TRUE(document["train_step"][0]["times_pytorchs_best"].is_null());
  EXPECT_THAT(document["train_step"][0]["missing"]["pytorch"], HasSubstr("/bin/false has no PyTorch"));
}

}  // namespace
}  // namespace lockstep::testing
