// scripts/bench-gpu on machines without a GPU: its output, its files and its exit code.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/bench/fake_build.h"
#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchGpu, SaysThatThereIsNoGpu) {
  Child bench(script("bench-gpu", {}), {.environment = kNoGpu});
  EXPECT_EQ(bench.wait(60s), 1) << bench.output();
  EXPECT_THAT(bench.errors(),
              HasSubstr("bench-gpu: no GPU: the CUDA part cannot be loaded: the file /nonexistent.so does not exist"));
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
  EXPECT_EQ(document["all_reduce"]["rows"][0]["shared"], 2) << "two ranks share one GPU";
  EXPECT_EQ(document["all_reduce"]["rows"][0]["blocking"], 0);
  EXPECT_EQ(document["all_reduce"]["rows_of_blocking_calls"][0]["blocking"], 1);
  const auto beyond = bench({"--device", "cuda:1"});
  EXPECT_EQ(beyond->wait(60s), 1);
  EXPECT_THAT(beyond->errors(), HasSubstr("--device cuda:1: this machine shows 1, counted from 0"));
}

// PyTorch hangs in the second round. The rows of the first round are written before that and remain.
TEST(BenchGpu, LinearLayersKeepCompletedRounds) {
  const FakeBuild fake("bench-gpu-linear-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/operators", R"(for name in local3 local4 'mlp layer, batch 64' 'linear 8192'; do
echo "{\"operator\": \"$name forward\", \"gflops\": 45}"
done)");
  const std::string python = fake.program("python", R"([ "$1" = -c ] && exit 0
while [ "$1" != --linear ]; do shift; done
[ "$2" = local4 ] && [ -e "$0.again" ] && { touch "$0.hangs"; sleep 600; }
[ "$2" = local4 ] && touch "$0.again"
echo "{\"operator\": \"$2 forward\", \"gflops\": 50}")");
  Child bench(script("bench-gpu",
                     {"--only", "linear", "--rounds", "2", "--time-limit", "10", "--python", python, "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  for (int tries = 0; tries < 1500 && !std::filesystem::exists(python + ".hangs"); ++tries)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(nlohmann::json::parse(std::ifstream(file))["linear"].size(), 4U) << "written after the round";
  ASSERT_EQ(bench.wait(100s), 0) << bench.output() << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: linear, round 2: .* has not ended in time"));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  ASSERT_EQ(document["linear"].size(), 4U);
  for (const auto& row : document["linear"]) {
    EXPECT_EQ(row["gflops"], 45) << row;
    EXPECT_EQ(row["pytorch_gflops"], 50) << row;
    EXPECT_EQ(row["percent_of_pytorch"], 90) << row;
  }
}

TEST(BenchGpu, APartWithInvalidOrEndlessOutputIsNotMeasured) {
  const FakeBuild fake("bench-gpu-nonsense-");
  const std::string file = fake.folder() / "out.json";
  fake.program("bench/operators", "echo '{\"operator\": '");
  fake.program("examples/device_matmul", "while :; do echo and so on; sleep 0.01; done");
  Child bench(script("bench-gpu", {"--only", "kernels", "matmul", "--time-limit", "6", "--output", file}),
              {.environment = {{"BUILD", fake.folder().string()}}});
  ASSERT_EQ(bench.wait(100s), 0) << bench.errors();
  EXPECT_TRUE(bench.nothing_left());
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: kernels: .* printed a line that is not JSON"));
  EXPECT_THAT(bench.output(), ContainsRegex("not measured: matmul: .* has not ended in time"));
}

TEST(BenchGpu, ARunThatIsKilledLeavesTheRowsBefore) {
  const FakeBuild fake("bench-gpu-killed-");
  const std::filesystem::path file = fake.folder() / "out.json", kernels = fake.folder() / "bench/operators";
  fake.program("bench/operators",
               R"(echo '{"operator": "linear 64", "ms": 1, "gflops": 5, "gbps": 0, "share_percent": 100}'
echo 'and so on'; sleep 600)");
  Child bench(script("bench-gpu", {"--only", "kernels", "--output", file.string()}),
              {.environment = {{"BUILD", fake.folder().string()}}});
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

TEST(BenchGpu, RefusesWrongFlags) {
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--device", "gpu"}, "--device gpu: cpu, cuda or cuda:N"},
      {{"--device", "cpu", "--rounds", "0"}, "--rounds 0: at least 1"}};
  for (const auto& [flags, text] : wrong) {
    Child bench(script("bench-gpu", flags));
    EXPECT_EQ(bench.wait(60s), 2) << bench.output();
    EXPECT_THAT(bench.errors(), HasSubstr(text));
  }
}

// Runs the entire script on the CPU with small sizes: every part except PyTorch's.
TEST(BenchGpu, WritesEveryPart) {
  const std::string file = ::testing::TempDir() + "bench-gpu-" + std::to_string(::getpid()) + ".json";
  Child bench(script("bench-gpu", {"--device",
                                   "cpu",
                                   "--tiny",
                                   "--steps",
                                   "1",
                                   "--rounds",
                                   "1",
                                   "--kernel-rounds",
                                   "1",
                                   "--models",
                                   "mlp",
                                   "--precisions",
                                   "float32",
                                   "bf16",
                                   "--torch-modes",
                                   "--only",
                                   "train_step",
                                   "kernels",
                                   "all_reduce",
                                   "matmul",
                                   "--output",
                                   file}),
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
  ASSERT_EQ(document["goals"].size(), 7U);
  EXPECT_TRUE(document["goals"][0]["reached"].is_null()) << "there was no comparison with PyTorch";
  EXPECT_TRUE(document["goals"][3]["reached"].is_number()) << "arrays this small may round to 0";
}

}  // namespace
}  // namespace lockstep::testing
