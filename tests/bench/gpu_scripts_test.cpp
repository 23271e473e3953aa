// scripts/test-gpu and scripts/bench-gpu on machines without a GPU: what they say and write, how they end.
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// As if there were no CUDA part, also where there is one.
const std::map<std::string, std::string> kNoGpu = {{"LOCKSTEP_CUDA_LIBRARY", "/nonexistent.so"}, {"BUILD", BUILD_FOLDER}};

std::vector<std::string> script(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"python3", SCRIPTS "/" + name, "--no-build"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// A build folder of programs that only tell how they were called; lockrun shows one GPU.
class FakeBuild {
 public:
  explicit FakeBuild(const std::string& name) : folder_(::testing::TempDir() + name + std::to_string(::getpid())) {
    const std::string visible = R"({"gpus":[{"name":"Fake H200","uuid":"GPU-b","memory_bytes":9,"compute_capability":"9.0"}]})";
    program("launcher/lockrun", "[ \"$1\" = topology ] && { echo '" + visible + R"('; exit 0; }
echo "{\"bytes\": 4, \"p50_us\": 1, \"ranks\": $2, \"shared\": $4}")");
  }
  ~FakeBuild() { std::filesystem::remove_all(folder_); }
  FakeBuild(const FakeBuild&) = delete;
  FakeBuild& operator=(const FakeBuild&) = delete;
  std::string program(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  const std::filesystem::path folder_;
};

TEST(TestGpu, ListsItsStages) {
  Child list(script("test-gpu", {"--list"}));
  ASSERT_EQ(list.wait(60s), 0) << list.errors();
  for (const char* stage : {"smoke", "devices", "memcheck", "racecheck", "ranks", "hooks", "conformance", "overlap", "kill", "graph"})
    EXPECT_THAT(list.output(), HasSubstr(stage));
  Child wrong(script("test-gpu", {"everything"}));
  EXPECT_EQ(wrong.wait(60s), 2);
  EXPECT_THAT(wrong.errors(), HasSubstr("no stage everything: there are smoke, devices,"));
}

// As on a machine whose GPU is there and whose driver or CUDA part is broken.
TEST(TestGpu, AGpuThatCannotBeUsedIsAFailureWithItsReasonAndASkipWhereThatIsAllowed) {
  Child strict(script("test-gpu", {"devices", "conformance", "kill"}), {.environment = kNoGpu, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(strict.wait(120s), 1) << strict.output() << strict.errors();
  EXPECT_THAT(strict.output(), HasSubstr("no GPU: the CUDA part cannot be loaded: there is no file /nonexistent.so"));
  EXPECT_THAT(strict.output(), ContainsRegex("=== devices: 0 passed, [1-9][0-9]* failed, 0 skipped"));
  EXPECT_THAT(strict.output(), ContainsRegex("=== conformance: [01] passed, 3 failed, [01] skipped"));
  EXPECT_THAT(strict.output(), HasSubstr("=== kill: 0 passed, 1 failed, 0 skipped"));
  EXPECT_THAT(strict.output(), Not(HasSubstr(": Failure\n"))) << "said once, not by every test";
  Child lenient(script("test-gpu", {"devices", "conformance", "kill", "--allow-skip"}),
                {.environment = kNoGpu, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(lenient.wait(120s), 0) << lenient.output() << lenient.errors();
  EXPECT_THAT(lenient.output(), ContainsRegex("=== devices: 0 passed, 0 failed, [1-9][0-9]* skipped"));
  EXPECT_THAT(lenient.output(), HasSubstr("=== kill: 0 passed, 0 failed, 1 skipped"));
}

// One test has no GPU, another failed otherwise and quotes what a child said of GPUs: all of the latter is shown.
TEST(TestGpu, OnlyATestsOwnWordSaysThatThereIsNoGpu) {
  namespace fs = std::filesystem;
  const fs::path build = ::testing::TempDir() + "test-gpu-quoted-" + std::to_string(::getpid()),
                 program = build / "tests/gpu/gpu_ranks_test";
  fs::create_directories(program.parent_path());
  std::ofstream(program) << R"(#!/bin/sh
for flag in "$@"; do case "$flag" in --gtest_output=xml:*) report="${flag#--gtest_output=xml:}" ;; esac; done
cat > "$report" <<'END'
<testsuites><testsuite name="Gpu">
<testcase classname="Gpu" name="Missing" status="run"><failure message="gpu.h:43&#x0A;Failed&#x0A;no GPU: no driver"/></testcase>
<testcase classname="Gpu" name="Quotes" status="run"><failure message="ranks_test.cpp:7&#x0A;Failed&#x0A;rank 1 lost&#x0A;no GPU: said a child"/></testcase>
</testsuite></testsuites>
END
echo "ranks_test.cpp:7: Failure"
exit 1
)";
  fs::permissions(program, fs::perms::owner_all);
  Child kill(script("test-gpu", {"kill"}), {.environment = {{"BUILD", build.string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_THAT(kill.output(), HasSubstr("failed 1: Gpu.Missing: no GPU: no driver\n"));
  EXPECT_THAT(kill.output(), HasSubstr("failed 1: Gpu.Quotes: ranks_test.cpp:7\nFailed\nrank 1 lost\nno GPU: said a child\n"));
  EXPECT_THAT(kill.output(), HasSubstr("ranks_test.cpp:7: Failure\n")) << "all is said of a run with another failure";
  fs::remove_all(build);
}

// A program whose first test passes and whose second one hangs.
TEST(TestGpu, SaysEachResultAsItComesAndEndsAtTheLimit) {
  const FakeBuild fake("test-gpu-streams-");
  fake.program("tests/gpu/gpu_ranks_test", R"(echo 'Running main() from gmock_main.cc'
echo '[ RUN      ] Kill.First'
echo 'a word of the test'
echo '[       OK ] Kill.First (12 ms)'
echo '[ RUN      ] Kill.Second'
sleep 600)");
  Child kill(script("test-gpu", {"kill", "overlap", "--time-limit", "4"}), {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_TRUE(kill.nothing_left());
  EXPECT_THAT(kill.output(), HasSubstr("a word of the test\nOK       Kill.First (12 ms)\n"));
  EXPECT_THAT(kill.output(), ContainsRegex("failed 1: gpu_ranks_test: has not ended after [0-9] s"));
  EXPECT_THAT(kill.output(), ContainsRegex("skipped 1: no time is left of the 4.0 s"));
  EXPECT_THAT(kill.output(), HasSubstr("libcudnn.so.9 ")) << "which libraries are there, or why not";
}

TEST(TestGpu, SmokePrintsWhichEnginesRemain) {
  const FakeBuild fake("test-gpu-engines-");
  const std::string none = "echo '[ RUN      ] A.B'; echo '[       OK ] A.B (1 ms)'; exit 1";
  fake.program("tests/gpu/gpu_test", none);
  fake.program("tests/gpu/gpu_ranks_test", none);
  fake.program("tests/kernels/kernel_twins_test", R"(echo "level $LOCKSTEP_LOG_LEVEL"
echo '[ RUN      ] Conv.First'
for again in 1 2; do echo 'lockstep debug: cuDNN: engines that remain for a convolution: eng5, eng7'; done
echo 'lockstep debug (rank 0): something else'
echo '[       OK ] Conv.First (12 ms)'
exit 1)");
  Child smoke(script("test-gpu", {"smoke"}), {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(smoke.wait(60s), 1) << smoke.errors();
  EXPECT_THAT(smoke.output(),
              HasSubstr("level debug\ncuDNN: engines that remain for a convolution: eng5, eng7\nOK       Conv.First (12 ms)\n"));
}

TEST(TestGpu, RunsTheTestsThatAreNamed) {
  const FakeBuild fake("test-gpu-filter-");
  fake.program("tests/gpu/gpu_ranks_test", R"(case "$*" in
*--gtest_list_tests*) printf 'GpuKill.\n  First\nGpuKill/More.\n  Second/2  # GetParam() = 2\n'; exit 0 ;;
esac
echo "called with $1"; exit 1)");
  Child kill(script("test-gpu", {"kill", "--filter", "*Second*:*Third"}), {.environment = {{"BUILD", fake.folder().string()}}});
  EXPECT_EQ(kill.wait(60s), 1) << kill.errors();
  EXPECT_THAT(kill.output(), HasSubstr("called with --gtest_filter=GpuKill/More.Second/2\n"));
}

TEST(TestGpu, AFilterThatRunsNothingFails) {
  const FakeBuild fake("test-gpu-nothing-");
  const std::map<std::string, std::string> environment = {{"BUILD", fake.folder().string()}};
  fake.program("tests/gpu/gpu_ranks_test", R"(printf 'GpuKill.\n  First\n')");
  for (const char* filter : {"*Frist", "-*First"}) {
    Child nothing(script("test-gpu", {"kill", "--filter=" + std::string(filter)}), {.environment = environment});
    EXPECT_EQ(nothing.wait(60s), 1) << nothing.output();
    EXPECT_THAT(nothing.output(), HasSubstr("no test matches " + std::string(filter)));
  }
  fake.program("tests/gpu/gpu_ranks_test", "echo 'no libcudnn.so.9 here' >&2; exit 127");
  Child broken(script("test-gpu", {"kill", "--filter", "*First"}), {.environment = environment});
  EXPECT_EQ(broken.wait(60s), 1);
  EXPECT_THAT(broken.output(), HasSubstr("failed 1: gpu_ranks_test: cannot list its tests: exit 127: no libcudnn.so.9 here\n"));
}

// As where neither packages nor compilers can be had.
TEST(TestGpu, UsesABundleWhereItCannotBuild) {
  namespace fs = std::filesystem;
  const FakeBuild fake("test-gpu-bundle-");
  fs::create_directories(fake.folder() / "scripts");
  for (const char* name : {"test-gpu", "gpu_programs.py"}) fs::copy_file(fs::path(SCRIPTS) / name, fake.folder() / "scripts" / name);
  fake.program("scripts/dependencies", "echo no packages; exit 1");
  fake.program("scripts/configure", "echo no meson; exit 1");
  Child none({"python3", (fake.folder() / "scripts/test-gpu").string(), "kill"});
  EXPECT_EQ(none.wait(60s), 1);
  EXPECT_THAT(none.errors(), HasSubstr("Make them elsewhere by `scripts/bundle`, and bring build-bundle along"));
  const fs::path bundle = fake.folder() / "build-bundle/lockstep/scripts";
  fs::create_directories(bundle);
  std::ofstream(bundle / "test-gpu") << "import sys\nprint('the bundle does', sys.argv[1:])\n";
  Child there({"python3", (fake.folder() / "scripts/test-gpu").string(), "kill"});
  EXPECT_EQ(there.wait(60s), 0) << there.errors();
  EXPECT_THAT(there.output(), HasSubstr("the bundle does ['kill']"));
}

TEST(TestGpu, EndsWithAllThatItStarted) {
  namespace fs = std::filesystem;
  const fs::path build = ::testing::TempDir() + "test-gpu-" + std::to_string(::getpid()), program = build / "tests/gpu/gpu_ranks_test";
  fs::create_directories(program.parent_path());
  std::ofstream(program) << "#!/bin/sh\ntouch \"$0.started\"\nsleep 60\n";
  fs::permissions(program, fs::perms::owner_all);
  Child kill(script("test-gpu", {"kill"}), {.environment = {{"BUILD", build.string()}}});
  const fs::path started = program.string() + ".started";
  for (int tries = 0; tries < 3000 && !fs::exists(started); ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(fs::exists(started)) << kill.errors();
  kill.signal(SIGTERM);
  EXPECT_EQ(kill.wait(30s), 128 + SIGTERM) << kill.errors();
  EXPECT_TRUE(kill.nothing_left());
  fs::remove_all(build);
}

TEST(BenchGpu, SaysThatThereIsNoGpu) {
  Child bench(script("bench-gpu", {}), {.environment = kNoGpu});
  EXPECT_EQ(bench.wait(60s), 1) << bench.output();
  EXPECT_THAT(bench.errors(), HasSubstr("bench-gpu: no GPU: the CUDA part cannot be loaded: there is no file /nonexistent.so"));
}

TEST(BenchGpu, CountsTheGpusThatProgramsSee) {
  const FakeBuild fake("bench-gpu-seen-");
  const auto& build = fake.folder();
  fake.program("bench/all_reduce", "exit 1");
  fake.program("path/nvidia-smi", "echo 'Hidden, GPU-a, 1, 2, 3, 4'\necho 'Fake H200, GPU-b, 580, 2, 3, 4'");
  const std::map<std::string, std::string> environment = {{"BUILD", build.string()},
                                                          {"PATH", (build / "path").string() + ":/usr/bin:/bin"}};
  const auto bench = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--only", "all_reduce", "--output", build / "out.json"};
    all.insert(all.end(), flags.begin(), flags.end());
    return std::make_unique<Child>(script("bench-gpu", all), ChildOptions{.environment = environment});
  };
  const auto one = bench({});
  ASSERT_EQ(one->wait(60s), 0) << one->output() << one->errors();
  const auto document = nlohmann::json::parse(std::ifstream(build / "out.json"));
  ASSERT_EQ(document["gpus"].size(), 1U) << document["gpus"];
  EXPECT_EQ(document["gpus"][0]["uuid"], "GPU-b");
  EXPECT_EQ(document["gpus"][0]["driver_version"], "580");
  EXPECT_EQ(document["all_reduce"]["rows"][0]["shared"], 2) << "two ranks share the one";
  const auto beyond = bench({"--device", "cuda:1"});
  EXPECT_EQ(beyond->wait(60s), 1);
  EXPECT_THAT(beyond->errors(), HasSubstr("--device cuda:1: this machine shows 1, counted from 0"));
}

// Every precision: ours in that type, eager and in graph mode, beside PyTorch's modes in the same. The times that the programs tell
// say how they were called.
TEST(BenchGpu, ComparesEveryPrecisionWithPyTorchsOwn) {
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
  ASSERT_EQ(document["train_step"].size(), 9U) << "three models in three precisions";
  const std::map<std::string, double> ours = {{"float32", 4}, {"tf32", 3}, {"bf16", 2}};
  for (const auto& row : document["train_step"]) {
    const std::string precision = row["precision"];
    const auto& contestants = row["contestants"];
    ASSERT_EQ(contestants.size(), 5U) << row;
    EXPECT_EQ(contestants["lockstep"]["step_ms"], ours.at(precision)) << row;
    EXPECT_EQ(contestants["lockstep graph"]["step_ms"], ours.at(precision) + 0.5) << row;
    EXPECT_EQ(contestants["pytorch eager"]["step_ms"], precision == "bf16" ? 8 : 9) << row;
    EXPECT_EQ(contestants["pytorch compile"]["step_ms"], precision == "bf16" ? 3 : 9) << row;
    EXPECT_EQ(contestants["pytorch compile-graphs"]["step_ms"], precision == "bf16" ? 8 : 9) << row;
    if (precision == "bf16") {
      EXPECT_EQ(row["times_pytorchs_best"], 1.5);
    }
  }
}

// One contestant compiles for ever, another dies; what was measured is written all the same, as soon as it is there.
TEST(BenchGpu, WritesEachRowAndListsWhoDoesNotAnswer) {
  const FakeBuild fake("bench-gpu-late-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(echo '{"ready": true}'
while read -r line; do echo '{"step_ms": 1}'; done)");
  fake.program("bench/operators", R"(echo '{"operator": "linear 64", "ms": 1, "gflops": 5, "gbps": 0, "share_percent": 100}'
touch "$0.first"; sleep 600)");
  const std::string python = fake.program("python", R"([ "$1" = -c ] && exit 0
case "$*" in *"--mode eager "*) echo '{"ready": true}'; read -r line; exit 3 ;; esac
sleep 600)");
  Child bench(script("bench-gpu", {"--only", "train_step", "kernels", "--models", "mlp", "--precisions", "float32", "--torch-modes",
                                   "compile", "--time-limit", "15", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
  EXPECT_THAT(bench.output(), HasSubstr("not measured: train_step mlp float32, pytorch compile: "));
  EXPECT_THAT(bench.output(), HasSubstr("not measured: kernels: "));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(document["not_measured"].size(), 2U) << document["not_measured"];
  ASSERT_EQ(document["kernels"].size(), 1U) << "the row that came before the time was over";
}

// It answers the first round and dies in the second.
TEST(BenchGpu, AContestantThatFailsLateTakesNoRowAlong) {
  const FakeBuild fake("bench-gpu-dies-");
  const std::string file = fake.folder() / "out.json";
  const std::string round = R"(echo '{"ready": true}'; read -r line; echo '{"step_ms": 1}'; read -r line; )";
  fake.program("bench/train_step", round + R"(echo '{"step_ms": 3}'; read -r line)");
  const std::string python = fake.program("python", "[ \"$1\" = -c ] && exit 0\n" + round + "exit 3");
  Child bench(script("bench-gpu", {"--only", "train_step", "--models", "mlp", "--precisions", "float32", "--torch-modes", "eager",
                                   "--rounds", "2", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: train_step mlp float32, pytorch eager: round 2: .* ended with 3"));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(document["train_step"].size(), 1U) << document["not_measured"];
  const auto& contestants = document["train_step"][0]["contestants"];
  EXPECT_EQ(contestants["lockstep"]["rounds_step_ms"].size(), 2U) << contestants;
  EXPECT_FALSE(contestants.contains("pytorch eager")) << contestants;
}

TEST(BenchGpu, APartThatTalksNonsenseOrWithoutEndIsNotMeasured) {
  const FakeBuild fake("bench-gpu-nonsense-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/operators", "echo '{\"operator\": '");
  fake.program("examples/device_matmul", "while :; do echo and so on; sleep 0.01; done");
  Child bench(script("bench-gpu", {"--only", "kernels", "matmul", "--time-limit", "6", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: kernels: .* printed a line that is no JSON"));
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: matmul: .* has not ended in time"));
}

TEST(BenchGpu, ARunThatIsKilledLeavesTheRowsBefore) {
  const FakeBuild fake("bench-gpu-killed-");
  const std::filesystem::path file = fake.folder() / "out.json", kernels = fake.folder() / "bench/operators";
  fake.program("bench/operators", R"(echo '{"operator": "linear 64", "ms": 1, "gflops": 5, "gbps": 0, "share_percent": 100}'
echo 'and so on'; sleep 600)");
  Child bench(script("bench-gpu", {"--only", "kernels", "--output", file.string()}), {.environment = {{"BUILD", fake.folder().string()}}});
  const auto has_row = [&] {
    const auto document = nlohmann::json::parse(std::ifstream(file), nullptr, false);
    return document.is_object() && document.contains("kernels");
  };
  for (int tries = 0; tries < 3000 && !has_row(); ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(has_row()) << bench.errors();
  bench.signal(SIGTERM);
  EXPECT_EQ(bench.wait(30s), 128 + SIGTERM) << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
}

// Rounds beyond the first are made while there is time.
TEST(BenchGpu, LeavesOutRoundsAndNotRows) {
  const FakeBuild fake("bench-gpu-rounds-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/train_step", R"(echo '{"ready": true}'
while read -r line; do sleep 2; echo '{"step_ms": 1}'; done)");
  Child bench(script("bench-gpu", {"--only", "train_step", "--precisions", "float32", "--torch-modes", "--rounds", "50", "--time-limit",
                                   "40", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  const auto document = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(document["train_step"].size(), 3U) << document["not_measured"];
  for (const auto& row : document["train_step"]) EXPECT_LT(row["contestants"]["lockstep"]["rounds_step_ms"].size(), 25U) << row;
}

TEST(BenchGpu, SaysOnceThatThereIsNoPyTorch) {
  const std::string file = ::testing::TempDir() + "bench-gpu-torch-" + std::to_string(::getpid()) + ".json";
  Child bench(script("bench-gpu",
                     {"--device", "cpu", "--tiny", "--python", "/bin/false", "--models", "mlp", "--only", "train_step", "--output", file}),
              {.environment = {{"BUILD", BUILD_FOLDER}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  const auto document = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  ASSERT_EQ(document["not_measured"].size(), 1U) << document["not_measured"];
  EXPECT_EQ(document["train_step"].size(), 1U) << "float32 alone on the CPU";
  EXPECT_EQ(document["rounds"], 1);
}

TEST(BenchGpu, RefusesWrongFlags) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {{{"--device", "gpu"}, "--device gpu: cpu, cuda or cuda:N"},
                                                                    {{"--device", "cpu", "--rounds", "0"}, "--rounds 0: at least 1"}};
  for (const auto& [flags, text] : wrong) {
    Child bench(script("bench-gpu", flags));
    EXPECT_EQ(bench.wait(60s), 2) << bench.output();
    EXPECT_THAT(bench.errors(), HasSubstr(text));
  }
}

// The whole script on the CPU, with small sizes: every part but PyTorch's.
TEST(BenchGpu, WritesEveryPart) {
  const std::string file = ::testing::TempDir() + "bench-gpu-" + std::to_string(::getpid()) + ".json";
  Child bench(script("bench-gpu",
                     {"--device",   "cpu",    "--tiny",       "--steps", "1",    "--rounds",      "1",      "--kernel-rounds", "1",
                      "--models",   "mlp",    "--precisions", "float32", "bf16", "--torch-modes", "--only", "train_step",      "kernels",
                      "all_reduce", "matmul", "--output",     file}),
              {.environment = {{"BUILD", BUILD_FOLDER}}});
  ASSERT_EQ(bench.wait(500s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(), Not(HasSubstr("not measured:")));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  ASSERT_EQ(document["train_step"].size(), 2U);
  for (const std::size_t i : {0, 1}) {
    EXPECT_EQ(document["train_step"][i]["precision"], i == 0 ? "float32" : "bf16");
    EXPECT_EQ(document["train_step"][i]["contestants"]["lockstep"]["rounds_step_ms"].size(), 1U);
  }
  ASSERT_GT(document["kernels"].size(), 30U);
  for (const auto& row : document["kernels"]) EXPECT_GT(row["ms"].get<double>(), 0) << row;
  EXPECT_EQ(document["all_reduce"]["ranks"], 2);
  EXPECT_GT(document["all_reduce"]["rows"].size(), 3U);
  EXPECT_EQ(document["matmul"][0]["sum"], 180875753);
  ASSERT_EQ(document["goals"].size(), 5U);
  EXPECT_TRUE(document["goals"][0]["reached"].is_null()) << "nobody compared it with PyTorch";
  EXPECT_GT(document["goals"][1]["reached"].get<double>(), 0);
}

}  // namespace
}  // namespace lockstep::testing
