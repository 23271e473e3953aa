// Jobs of several ranks that share one GPU over NCCL: the CPU's losses, the same bits everywhere, communication during
// computation, and the survivors of a killed rank. They run the program gpu_rank.cpp.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <sstream>

#include "lockstep/comm/capabilities.h"
#include "tests/faults/child.h"
#include "tests/faults/hand_job.h"
#include "tests/gpu/gpu.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kJob = 180s;    // maximum; libraries load, cuDNN measures its engines
constexpr auto kSuite = 300s;  // the conformance suite creates a communicator for each test
// For losses that fall from 2.3 in 40 steps: float32 sums in other orders, amplified by the steps between.
constexpr double kLossBound = 0.02;
constexpr double kHookLossBound = 0.05;
constexpr int kPeerLost = 75;
constexpr double kSurvivorsKnowWithinMs = 2000;

// The text after `label` in each line that has it.
std::vector<std::string> after(const std::string& label, const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find(label); at != std::string::npos) found.push_back(line.substr(at + label.size()));
  return found;
}

std::vector<double> losses_in(const std::string& output) {
  std::vector<double> losses;
  for (const std::string& text : after("loss ", output)) losses.push_back(std::stod(text.substr(text.find(' ') + 1)));
  return losses;
}

std::vector<std::string> shared_job_of(const std::string& name, int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {program("lockrun"),    "-n",         std::to_string(ranks), "--share-gpu",
                                      std::to_string(ranks), program(name)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}
std::vector<std::string> shared_job(int ranks, const std::vector<std::string>& arguments) {
  return shared_job_of("gpu_rank", ranks, arguments);
}
// lockrun decides which rank has which GPU: the test process's own choice does not count.
const ChildOptions kLaunched = {.unset = {"LOCKSTEP_DEVICE"}};

// Needs no GPU: checks that the programs exist and run, and that the number of ranks does not change the result.
TEST(RanksOnTheCpu, LearnTheSameInAnyNumber) {
  std::vector<std::vector<double>> losses;
  for (const int ranks : {1, 2}) {
    Child job({program("lockrun"), "-n", std::to_string(ranks), program("gpu_rank"), "mode=train", "net=perceptron",
               "steps=5"},
              {.environment = {{"LOCKSTEP_DEVICE", "cpu"}}});
    ASSERT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
    losses.push_back(losses_in(job.output()));
    ASSERT_THAT(losses.back(), SizeIs(5)) << job.output();
  }
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-3 * losses[0][i]) << i;
}

class SharedGpu : public GpuTest, public ::testing::WithParamInterface<std::tuple<int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(GpuRanks, SharedGpu,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values("convolutional", "perceptron")),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", std::get<1>(tested.param), std::get<0>(tested.param));
                         });

TEST_P(SharedGpu, LearnsWhatTheCpuLearnsWithTheSameBitsOnAllRanks) {
  const auto [ranks, net] = GetParam();
  const std::vector<std::string> arguments = {"mode=train", fmt::format("net={}", net)};
  std::vector<std::string> alone = {program("gpu_rank")};
  alone.insert(alone.end(), arguments.begin(), arguments.end());
  Child reference(alone, {.environment = {{"LOCKSTEP_DEVICE", "cpu"}}});
  ASSERT_EQ(reference.wait(kJob), 0) << reference.errors();
  const auto expected = losses_in(reference.output());
  ASSERT_THAT(expected, SizeIs(40));
  EXPECT_LT(expected.back(), 0.8 * expected.front()) << "it must learn, else equal losses say little";

  Child job(shared_job(ranks, arguments), kLaunched);
  ASSERT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
  const auto losses = losses_in(job.output());
  ASSERT_THAT(losses, SizeIs(expected.size())) << job.output();
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], kLossBound) << "step " << i;
  const auto hashes = after(" has ", job.output());
  EXPECT_THAT(hashes, SizeIs(ranks)) << job.output();
  EXPECT_THAT(std::set<std::string>(hashes.begin(), hashes.end()), SizeIs(1)) << job.output();
  EXPECT_THAT(after("on cuda:", job.output()), SizeIs(ranks))
      << "ranks that quietly computed elsewhere: " << job.output();
}

// Compares compression on a GPU with that on the CPU, with as many ranks. Sums in other orders select other values of a
// gradient, and other factors: losses stay close to each other, weights do not.
class GpuHook : public GpuTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(GpuHooks, GpuHook, ::testing::Values("bf16", "int8", "power_sgd", "top_k"),
                         [](const auto& tested) { return std::string(tested.param); });

std::vector<std::string> hook_arguments(const char* hook) {
  return {"mode=train", "net=perceptron", fmt::format("hook={}", hook)};
}

std::vector<double> losses_on_cpus(const char* hook) {
  std::vector<std::string> command = {program("lockrun"), "-n", "2", program("gpu_rank")};
  for (const std::string& argument : hook_arguments(hook)) command.push_back(argument);
  Child job(command, {.environment = {{"LOCKSTEP_DEVICE", "cpu"}}});
  EXPECT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
  return losses_in(job.output());
}

TEST_P(GpuHook, LearnsWhatCpusLearnWithTheSameBitsOnAllRanks) {
  const std::vector<double> expected = losses_on_cpus(GetParam());
  ASSERT_THAT(expected, SizeIs(40));
  Child job(shared_job(2, hook_arguments(GetParam())), kLaunched);
  ASSERT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
  const auto losses = losses_in(job.output());
  ASSERT_THAT(losses, SizeIs(expected.size())) << job.output();
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], kHookLossBound) << "step " << i;
  const auto hashes = after(" has ", job.output());
  EXPECT_THAT(hashes, SizeIs(2)) << job.output();
  EXPECT_THAT(std::set<std::string>(hashes.begin(), hashes.end()), SizeIs(1)) << job.output();
}

// Needs no GPU: checks that the programs accept the hooks, and learn with them.
TEST(HooksOnTheCpu, Learn) {
  for (const char* hook : {"bf16", "int8", "power_sgd", "top_k"}) {
    const std::vector<double> losses = losses_on_cpus(hook);
    ASSERT_THAT(losses, SizeIs(40)) << hook;
    EXPECT_LT(losses.back(), 0.8 * losses.front()) << hook;
  }
}

// tests/conformance, where each rank is a process that runs the suite's cases for this number of ranks. Needs no GPU:
// checks that there are such cases, and that ranks started by lockrun reach this backend and no other.
TEST(ConformanceOnTheCpu, IsRefusedByTheBackend) {
  const auto backends = backend_names();
  if (std::find(backends.begin(), backends.end(), "nccl") == backends.end())
    GTEST_SKIP() << "this build has no backend 'nccl'";
  Child job({program("lockrun"), "-n", "2", program("conformance_test"),
             "--gtest_filter=Gpu/Collectives.LateRanksAreWaitedFor/*"},
            {.environment = {{"LOCKSTEP_GPU_TEST_RANKS", "2"}, {"LOCKSTEP_DEVICE", "cpu"}}});
  EXPECT_EQ(job.wait(kJob), 1) << job.output() << job.errors();
  EXPECT_THAT(job.output(), HasSubstr("backend 'nccl' is for GPUs, and rank ")) << job.errors();
}

class NcclItself : public GpuTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(GpuConformance, NcclItself, ::testing::Values(2, 3, 4), ::testing::PrintToStringParamName());

TEST_P(NcclItself, KeepsWhatTheBackendPromises) {
  const int ranks = GetParam();
  Child job(shared_job_of("conformance_test", ranks, {"--gtest_filter=Gpu/*", "--gtest_brief=1", "--gtest_color=no"}),
            {.environment = {{"LOCKSTEP_GPU_TEST_RANKS", std::to_string(ranks)}}, .unset = {"LOCKSTEP_DEVICE"}});
  EXPECT_EQ(job.wait(kSuite), 0) << job.output() << job.errors();
  const auto passed = after("[  PASSED  ] ", job.output());
  ASSERT_THAT(passed, SizeIs(ranks)) << job.output();
  EXPECT_GE(std::stoi(passed[0]), 30) << job.output();
  EXPECT_THAT(passed, ::testing::Each(passed[0]));
}

class GpuGraph : public GpuTest, public ::testing::WithParamInterface<std::tuple<int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(GpuGraphs, GpuGraph,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values("convolutional", "perceptron")),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", std::get<1>(tested.param), std::get<0>(tested.param));
                         });

// The same kernels in the same order compute the same bits. With measuring, cuDNN's engines could differ from run to
// run.
TEST_P(GpuGraph, LearnsWhatTheStepAsWrittenLearns) {
  const auto [ranks, net] = GetParam();
  std::vector<std::vector<std::string>> hashes;
  for (const char* graph : {"graph=0", "graph=1"}) {
    Child job(shared_job(ranks, {"mode=train", fmt::format("net={}", net), graph}),
              {.environment = {{"LOCKSTEP_CUDNN_AUTOTUNE", "0"}}, .unset = kLaunched.unset});
    ASSERT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
    hashes.push_back(after(" has ", job.output()));
    EXPECT_THAT(hashes.back(), SizeIs(ranks)) << job.output();
    if (std::string(graph) == "graph=1") {
      EXPECT_THAT(after("graphs: ", job.output()), ::testing::Each("1 recorded, 36 replayed")) << job.output();
    }
  }
  std::sort(hashes[0].begin(), hashes[0].end());
  std::sort(hashes[1].begin(), hashes[1].end());
  EXPECT_EQ(hashes[1], hashes[0]);
}

// The program of README's first page, unchanged.
using GpuExamples = GpuTest;
TEST_F(GpuExamples, HelloDdpLearnsOnASharedGpu) {
  const std::string folder = ::testing::TempDir() + "gpu-hello-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  Child job({"env", "-C", folder, program("lockrun"), "-n", "2", "--share-gpu", "2", program("hello_ddp")}, kLaunched);
  EXPECT_EQ(job.wait(kJob), 0) << job.errors();
  const auto losses = after("mean loss ", job.output());
  std::filesystem::remove_all(folder);
  ASSERT_THAT(losses, SizeIs(5)) << job.output();
  EXPECT_NEAR(std::stod(losses[0]), 0.924, 0.02);
  EXPECT_NEAR(std::stod(losses[4]), 0.004, 0.002);
}

using GpuOverlap = GpuTest;
TEST_F(GpuOverlap, TheFirstBucketIsReducedWhileBackwardComputes) {
  Child job(shared_job(2, {"mode=overlap"}), kLaunched);
  EXPECT_EQ(job.wait(kJob), 0) << job.output() << job.errors();
  EXPECT_THAT(after(": overlapped", job.output()), SizeIs(2)) << job.output();
  fmt::print("{}", job.output());
}

using GpuKill = GpuTest;
// Ranks are started by hand, so that no launcher ends the survivors.
TEST_F(GpuKill, SurvivorsOfARankKilledInAnAllReduceSaySoAndEnd) {
  constexpr int kRanks = 3;
  HandJob job(kRanks, {{"LOCKSTEP_SHARE_GPU", std::to_string(kRanks)},
                       {"LOCKSTEP_DEVICE", gpu().name()},
                       {"LOCKSTEP_GPU_MEMORY", "4G"}});
  for (int rank = 0; rank < kRanks; ++rank)
    job.start_command(rank, {program("gpu_rank"), "mode=kill", "fail_rank=1", "fail_at=10"});
  ASSERT_EQ(job[1].wait(kJob), 128 + SIGKILL) << job[1].output() << job[1].errors();
  const auto died = after("dies at ", job[1].output());
  ASSERT_THAT(died, SizeIs(1)) << job[1].output();
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(job[survivor].wait(10s), kPeerLost) << job[survivor].errors();
    EXPECT_THAT(job[survivor].errors(), HasSubstr("rank 1"));
    const auto knows = after("knows at ", job[survivor].output());
    ASSERT_THAT(knows, SizeIs(1)) << job[survivor].output() << job[survivor].errors();
    const double after_ms = std::stod(knows[0]) - std::stod(died[0]);
    EXPECT_LT(after_ms, kSurvivorsKnowWithinMs);
    fmt::print("rank {} knew after {:.1f} ms: {}", survivor, after_ms, job[survivor].errors());
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(job[rank].nothing_left());
}

}  // namespace
}  // namespace lockstep::testing
