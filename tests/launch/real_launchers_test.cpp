// The launchers on this machine, each with real ranks: lockrun, no launcher, mpirun, and those of other MPIs in
// LOCKSTEP_TEST_MPIEXEC_DIRS (bin folders that contain an mpiexec, separated by colons).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/comm/capabilities.h"
#include "src/core/process/compute_threads.h"
#include "tests/faults/hand_job.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr auto kSlow = 90s;

Words together(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The report of the ranks, in a file, since some launchers lose their last output.
class Report {
 public:
  ~Report() { std::filesystem::remove(path_); }
  std::string argument() const { return "report=" + path_; }
  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  static std::string next() {
    static int count = 0;
    return temporary("report" + std::to_string(++count));
  }
  const std::string path_ = next();
};

// Open MPI refuses root, and more ranks than cores.
Environment for_mpirun(Environment environment = {}) {
  environment.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                      {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
                      {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                      {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"}});
  return environment;
}

struct Launcher {
  const char* name;
  const char* beside;  // a file in an mpiexec's folder that identifies it; null: the installed mpirun
};
const Launcher kLaunchers[] = {{"mpirun", nullptr}, {"mpich", "hydra_pmi_proxy"}, {"open_mpi_5", "prterun"}};

// The program to start; "" if there is none.
std::string find(const Launcher& launcher) {
  if (launcher.beside == nullptr) return std::system("command -v mpirun > /dev/null 2>&1") == 0 ? "mpirun" : "";
  const char* const folders = std::getenv("LOCKSTEP_TEST_MPIEXEC_DIRS");
  std::istringstream names(folders == nullptr ? "" : folders);
  for (std::string folder; std::getline(names, folder, ':');)
    if (std::filesystem::exists(folder + "/" + launcher.beside)) return folder + "/mpiexec";
  return "";
}

class RealLaunchers : public ::testing::TestWithParam<Launcher> {
 protected:
  void SetUp() override {
    if (mpiexec_.empty())
      GTEST_SKIP() << (GetParam().beside == nullptr ? "mpirun is not installed"
                                                    : "no folder that LOCKSTEP_TEST_MPIEXEC_DIRS names has it");
  }
  Child start(int ranks, const Words& program) const {
    return Child(together({mpiexec_, "-n", std::to_string(ranks)}, program), {.environment = for_mpirun()});
  }
  const std::string mpiexec_ = find(GetParam());
};

INSTANTIATE_TEST_SUITE_P(All, RealLaunchers, ::testing::ValuesIn(kLaunchers),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(RealLaunchers, MakeOneWorld) {
  const Report report;
  Child job = start(3, collective_rank({"steps=10", report.argument()}));
  EXPECT_EQ(job.wait(kSlow), 0) << job.errors();
  for (const char* line :
       {"rank 0 of 3 did 10 steps over shm", "rank 1 of 3 did 10 steps over shm", "rank 2 of 3 did 10 steps over shm"})
    EXPECT_THAT(report.text(), HasSubstr(line)) << job.errors();
}

// The counts differ, so it would be a mismatch if a rank of one job came to the other's store.
TEST_P(RealLaunchers, KeepTwoJobsApart) {
  const Report first_report, second_report;
  Child first = start(2, collective_rank({"steps=40", "count=100", "pause_ms=10", first_report.argument()}));
  Child second = start(2, collective_rank({"steps=30", "count=200", "pause_ms=10", second_report.argument()}));
  EXPECT_EQ(first.wait(kSlow), 0) << first.errors();
  EXPECT_EQ(second.wait(kSlow), 0) << second.errors();
  EXPECT_THAT(first_report.text(), HasSubstr("rank 1 of 2 did 40 steps"));
  EXPECT_THAT(second_report.text(), HasSubstr("rank 1 of 2 did 30 steps"));
}

TEST_P(RealLaunchers, EndWithARankThatDies) {
  Child job = start(3, collective_rank({"steps=1000000", "fail_rank=2", "fail_at=50", "how=kill"}));
  EXPECT_GT(job.wait(kSlow), 0) << job.errors();
  EXPECT_TRUE(job.nothing_left());
}

// Open MPI, which the backend uses, sees its ranks as worlds of one.
TEST(MpichsRanks, AreRefusedByTheMpiBackend) {
  const auto names = backend_names();
  if (std::find(names.begin(), names.end(), "mpi") == names.end()) GTEST_SKIP() << "this build has no mpi backend";
  const std::string mpiexec = find(kLaunchers[1]);
  if (mpiexec.empty()) GTEST_SKIP() << "no folder that LOCKSTEP_TEST_MPIEXEC_DIRS names has MPICH";
  Child job(together({mpiexec, "-n", "2"}, collective_rank({"steps=3"})),
            {.environment = {{"LOCKSTEP_BACKEND", "mpi"}}});
  EXPECT_EQ(job.wait(kSlow), 2) << job.errors();
  EXPECT_THAT(job.errors(), HasSubstr("the group has 2 ranks, but mpirun started 1: every rank must be"));
}

// A shell in between passes on the variables, and Hydra's socket.
TEST_P(RealLaunchers, MayStartAScriptThatStartsTheProgram) {
  const Report report;
  Child job = start(2, together({"sh", "-c", "\"$@\"; true", "sh"}, collective_rank({"steps=10", report.argument()})));
  EXPECT_EQ(job.wait(kSlow), 0) << job.errors();
  EXPECT_THAT(report.text(), HasSubstr("rank 1 of 2 did 10 steps over shm")) << job.errors();
}

// -- the same program, ranks and seed: the same weights

std::string weights_by(const Words& launcher, Environment environment = {}, const Words& unset = {"OMP_NUM_THREADS"}) {
  const Report report;
  Child job(together(launcher, {WEIGHTS_RANK, report.argument()}),
            {.environment = std::move(environment), .unset = unset});
  EXPECT_EQ(job.wait(kSlow), 0) << launcher[0] << ": " << job.errors();
  return report.text();
}

std::string weights_by_hand() {
  const Report report;
  HandJob job(2);
  for (const int rank : {0, 1})
    job.start_command(rank, {"env", "-u", "OMP_NUM_THREADS", WEIGHTS_RANK, report.argument()});
  const std::string threads = std::to_string(std::max<std::size_t>(1, affinity().size() / 2)) + " threads\n";
  for (const int rank : {0, 1}) {
    EXPECT_EQ(job[rank].wait(kSlow), 0) << job[rank].errors();
    EXPECT_EQ(job[rank].output(), threads) << "the ranks share the cores, though nobody has told them how";
  }
  return report.text();
}

TEST(Weights, AreTheSameBoundOrNotAndByHand) {
  const std::string expected = weights_by({LOCKRUN, "--no-fold", "-n", "2"});
  ASSERT_THAT(expected, ::testing::StartsWith("2 ranks: weights "));
  EXPECT_EQ(weights_by({LOCKRUN, "--no-fold", "-n", "2", "--no-bind"}), expected);
  EXPECT_EQ(weights_by_hand(), expected);
}

TEST_P(RealLaunchers, TrainToTheWeightsThatLockrunTrainsTo) {
  const std::string expected = weights_by({LOCKRUN, "--no-fold", "-n", "2"});
  EXPECT_EQ(weights_by({mpiexec_, "-n", "2"}, for_mpirun()), expected);
  if (GetParam().beside == nullptr) {
    EXPECT_EQ(weights_by({mpiexec_, "--bind-to", "none", "-n", "2"}, for_mpirun()), expected) << "unbound";
  }
}

TEST(Weights, AreTheSameForAnyNumberOfThreads) {
  const std::string expected = weights_by({LOCKRUN, "--no-fold", "-n", "2"}, {{"OMP_NUM_THREADS", "1"}}, {});
  for (const char* threads : {"2", "3", "4"})
    EXPECT_EQ(weights_by({LOCKRUN, "--no-fold", "-n", "2"}, {{"OMP_NUM_THREADS", threads}}, {}), expected)
        << threads << " threads";
}

}  // namespace
}  // namespace lockstep::testing
