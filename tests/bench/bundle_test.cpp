// scripts/bundle, with the programs of this build: nothing is missing from it that the programs and scripts in it ask
// for. That a bundle needs no library of this machine, only a build of its own can show, which takes too long for a
// test.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/faults/child.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

class Bundle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Child made({"python3", SCRIPTS "/bundle", "--from", BUILD_FOLDER, "--output", folder().string()});
    exit_code_ = made.wait(200s);
    said_ = made.output() + made.errors();
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }
  static fs::path folder() { return ::testing::TempDir() + "bundle-" + std::to_string(::getpid()); }
  static std::vector<std::string> script(const std::string& name, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {"python3", folder() / "scripts" / name};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  static inline int exit_code_ = -1;
  static inline std::string said_;
};

TEST_F(Bundle, EachOfItsProgramsStartsAndEndsAsDocumented) {
  EXPECT_EQ(exit_code_, 0) << said_;
  for (const char* program : {"lockrun", "hello_ddp", "cifar10", "device_matmul", "train_step", "operators",
                              "all_reduce", "kernel_twins_test", "gpu_test", "gpu_ranks_test", "conformance_test"})
    EXPECT_THAT(said_, HasSubstr(std::string("starts: ") + program));
}

TEST(BundleFlags, ThatContradictEachOtherAreRefused) {
  const std::string made = ::testing::TempDir() + "bundle-never-made-" + std::to_string(::getpid());
  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--from", BUILD_FOLDER}, "say with --output where it shall lie"},
      {{"--from", BUILD_FOLDER, "--check", made}, "give one of them"},
      {{"--check", made, "--output", made}, "leave --output out"},
      {{"--from", BUILD_FOLDER, "--output", made, "-Dgpu_architectures=80"},
       "-Dgpu_architectures=80: --from builds nothing"},
      {{"--check", made, "-Dgpu_architectures=80"}, "-Dgpu_architectures=80: --check builds nothing"}};
  for (const auto& [flags, text] : wrong) {
    std::vector<std::string> command = {"python3", SCRIPTS "/bundle"};
    command.insert(command.end(), flags.begin(), flags.end());
    Child bundle(command);
    EXPECT_EQ(bundle.wait(60s), 2) << bundle.output();
    EXPECT_THAT(bundle.errors(), HasSubstr(text));
    EXPECT_FALSE(fs::exists(made));
  }
}

TEST_F(Bundle, TestGpuFindsAllThatItsStagesRun) {
  Child stages(
      script("test-gpu", {"devices", "ranks", "hooks", "conformance", "overlap", "kill", "graph", "--allow-skip"}),
      {.environment = {{"LOCKSTEP_CUDA_LIBRARY", "/nonexistent.so"}}, .unset = {"LOCKSTEP_DEVICE", "BUILD"}});
  ASSERT_EQ(stages.wait(200s), 0) << stages.output() << stages.errors();
  EXPECT_THAT(stages.output(),
              HasSubstr("=== ranks: 1 passed, 0 failed, 5 skipped"));  // lockrun and gpu_rank were found
  EXPECT_THAT(stages.output(), HasSubstr("=== hooks: 1 passed, 0 failed, 4 skipped"));
  EXPECT_THAT(stages.output(), ContainsRegex("=== conformance: [01] passed, 0 failed, [34] skipped"));
}

TEST_F(Bundle, BenchGpuFindsAllThatItMeasures) {
  const fs::path file = folder() / "bench/results/cpu.json";
  Child bench(script("bench-gpu", {"--device", "cpu", "--tiny", "--models", "mlp", "--torch-modes", "--only",
                                   "train_step", "kernels", "all_reduce", "matmul"}),
              {.unset = {"BUILD"}});
  ASSERT_EQ(bench.wait(200s), 0) << bench.output() << bench.errors();
  EXPECT_THAT(bench.output(), Not(HasSubstr("not measured:")));
  const auto document = nlohmann::json::parse(std::ifstream(file));
  for (const char* part : {"train_step", "kernels", "all_reduce", "matmul"})
    EXPECT_FALSE(document[part].empty()) << part;
  // PyTorch's side, where there is one.
  EXPECT_TRUE(fs::exists(folder() / "bench/gpu/torch_train_step.py"));
  EXPECT_TRUE(fs::exists(folder() / "bench/peers/train_step_ddp.py"));
}

}  // namespace
}  // namespace lockstep::testing
