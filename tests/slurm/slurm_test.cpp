// Jobs under a real Slurm, on one node and on two: see slurm_lab.h.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "tests/faults/hand_job.h"
#include "tests/slurm/slurm_lab.h"
#include "tests/support/pattern.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr milliseconds kSlow(60'000);

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class Slurm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (SlurmLab::obstacle().empty()) lab_ = std::make_unique<SlurmLab>();
  }
  static void TearDownTestSuite() { lab_.reset(); }
  void SetUp() override {
    if (const std::string obstacle = SlurmLab::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
    ASSERT_TRUE(lab_->becomes_idle()) << lab_->ask({"squeue"}) << lab_->ask({"sinfo"});
  }
  // Runs as a user of node 0 who has a token.
  static std::unique_ptr<Child> run(const Words& command, Environment environment = {}) {
    environment.insert({"LOCKSTEP_TOKEN", "the cluster's secret"});
    return std::make_unique<Child>(lab_->on_node_zero(command), lab_->options_of(std::move(environment)));
  }
  // Runs as one job with the commands of a batch script: two nodes of four CPUs each.
  static std::unique_ptr<Child> batch(const std::string& script, Environment environment = {}) {
    return run({"salloc", "-Q", "-N2", "--ntasks-per-node=4", "bash", "-c", script}, std::move(environment));
  }
  static std::string ranks(const std::string& arguments) { return COLLECTIVE_RANK " " + arguments; }
  static void expect_success(Child& job, int ranks) {
    EXPECT_EQ(job.wait(kSlow), 0) << job.output() << job.errors();
    expect_all_done(job, ranks);
  }
  static void expect_all_done(const Child& job, int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_THAT(job.output(), HasSubstr(fmt::format("rank {} of {} did 10 steps", rank, ranks))) << job.errors();
  }
  static void expect_all_running(const Child& job, int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_TRUE(job.wait_for_output(fmt::format("rank {} of {} is running", rank, ranks), kSlow))
          << job.output() << job.errors();
  }

  static inline std::unique_ptr<SlurmLab> lab_;
};

TEST_F(Slurm, TasksOfOneNode) {
  const auto job = run(Words{"srun", "-N1", "-n2"} + collective_rank({"steps=10"}), {{"LOCKSTEP_TOKEN", ""}});
  expect_success(*job, 2);
  EXPECT_THAT(job->output(), HasSubstr("over shm"));
}

// Two ranks on node 0, whose own name is loopback there, and one on node 1, where that name is an address.
TEST_F(Slurm, TasksOfTwoNodesWhoseOwnNamesAreLoopbackToThem) {
  const Words srun = {"srun", "-N2", "-n3"};
  for (const Environment& environment : {Environment{}, Environment{{"LOCKSTEP_INTERFACE", "lab0"}}}) {
    const auto job = run(srun + collective_rank({"steps=10"}), environment);
    expect_success(*job, 3);
    EXPECT_THAT(job->output(), HasSubstr("over hierarchical"));
  }
}

TEST_F(Slurm, TwoStepsOfOneJobSideBySide) {
  const auto job = batch("srun --exact -N2 -n2 " + ranks("steps=10 linger_ms=1000") + " & srun --exact -N1 -n2 " +
                         ranks("steps=10 linger_ms=1000") + " & srun --exact -N2 -n3 " + ranks("steps=10") + " & wait");
  expect_success(*job, 3);
  expect_all_done(*job, 2);
}

// All steps of a user have the same token: without a check of the store's job, the second step's ranks would join the
// first's.
TEST_F(Slurm, AStepWhosePortAnotherOneHoldsSaysSo) {
  const auto job = batch("srun --exact -N2 -n2 " + ranks("steps=1000000 pause_ms=5") +
                             " & while ! squeue -hs | grep -q '\\.0 '; do sleep 0.1; done; sleep 1; "
                             "srun --exact -N2 -n2 " +
                             ranks("steps=10") + "; echo the second step ended with $?; scancel $SLURM_JOB_ID.0; wait",
                         {{"MASTER_PORT", "29555"}});
  job->wait(kSlow);
  EXPECT_THAT(job->output(), HasSubstr("the second step ended with 1"));
  EXPECT_THAT(job->errors(), AllOf(HasSubstr("another job, or a second rank 0, holds this port"),
                                   HasSubstr("belongs to slurm-"), HasSubstr("MASTER_PORT")));
  EXPECT_THAT(job->errors(), Not(HasSubstr("is taken")));
}

// As in PyTorch's examples of batch scripts.
TEST_F(Slurm, AWorldSizeThatAgreesIsNoError) {
  expect_success(*batch("export WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=$(scontrol show hostnames | head -n 1) "
                        "MASTER_PORT=29560; srun -n8 " +
                        ranks("steps=10")),
                 8);
  const auto wrong = batch("export WORLD_SIZE=3; srun -n8 " + ranks("steps=10"));
  EXPECT_NE(wrong->wait(kSlow), 0);
  EXPECT_THAT(wrong->errors(), AllOf(HasSubstr("WORLD_SIZE=3"), HasSubstr("started 8")));
}

TEST_F(Slurm, ScancelEndsAllRanks) {
  const auto job =
      run(Words{"srun", "-N2", "-n3", "--job-name=cancelled"} + collective_rank({"steps=1000000", "pause_ms=1"}));
  expect_all_running(*job, 3);
  lab_->ask({"scancel", "--name=cancelled"});
  EXPECT_NE(job->wait(kSlow), 0);
  EXPECT_TRUE(job->nothing_left()) << job->errors();
}

TEST_F(Slurm, AKilledRankIsNamedAndEndsTheJob) {
  const auto job = run(Words{"srun", "-N2", "-n3"} +
                       collective_rank({"steps=1000000", "pause_ms=1", "fail_rank=2", "fail_at=50", "how=kill"}));
  EXPECT_NE(job->wait(kSlow), 0);
  EXPECT_THAT(job->errors(), AllOf(HasSubstr("rank 2 (pid "), HasSubstr("on host n1")));
  EXPECT_TRUE(job->nothing_left()) << job->errors();
}

const Words kStops = collective_rank({"steps=1000000", "pause_ms=1", "fail_rank=1", "fail_at=50", "how=stop"});
const Environment kQuick = {{"LOCKSTEP_STALL_TIMEOUT_S", "2"}};

TEST_F(Slurm, AStoppedRankEndsWithTheStepWhenSrunIsToldSo) {
  const auto job = run(Words{"srun", "-K", "-N2", "-n3"} + kStops, kQuick);
  EXPECT_NE(job->wait(kSlow), 0);
  EXPECT_THAT(job->errors(), HasSubstr("rank 1 (pid "));
  EXPECT_TRUE(job->nothing_left()) << job->errors();
}

// Without it srun waits for that rank, and the others' last messages name the remedy.
TEST_F(Slurm, AStoppedRankHoldsTheStepUntilScancel) {
  const auto job = run(Words{"srun", "-N2", "-n3"} + kStops, kQuick);
  std::vector<std::string> hint;
  const std::string remedy = "srun waits for that rank's end unless it was told -K.*`scancel ([0-9]+\\.0)`";
  for (const auto deadline = std::chrono::steady_clock::now() + kSlow;
       std::chrono::steady_clock::now() < deadline && hint.empty(); std::this_thread::sleep_for(milliseconds(50)))
    hint = find_match(job->errors(), remedy);
  ASSERT_FALSE(hint.empty()) << job->errors();
  EXPECT_FALSE(job->has_ended());
  lab_->ask({"scancel", hint[1]});
  EXPECT_NE(job->wait(kSlow), 0);
  EXPECT_TRUE(job->nothing_left()) << job->errors();
}

// -- lockrun as a step's task -----------------------------------------------------------------------------------------

TEST_F(Slurm, LockrunOnEachNodeIsOneJob) {
  const auto job =
      run(Words{"srun", "-N2", "--ntasks-per-node=1", LOCKRUN, "-n2", "--no-prefix"} + collective_rank({"steps=10"}));
  expect_success(*job, 4);
}

TEST_F(Slurm, SeveralLockrunsOnANodeAreAsked) {
  const auto job = run(Words{"srun", "-N1", "-n2", LOCKRUN, "-n1", "--no-prefix"} + collective_rank({"steps=10"}));
  EXPECT_NE(job->wait(kSlow), 0);
  EXPECT_THAT(job->errors(), AllOf(HasSubstr("--ntasks-per-node=1"), HasSubstr("--nnodes 1")));
  const auto alone =
      run(Words{"srun", "-N1", "-n2", LOCKRUN, "-n1", "--no-prefix", "--nnodes", "1"} + collective_rank({"steps=10"}));
  expect_success(*alone, 1);
}

// -- examples/clusters/slurm.sbatch

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `--signal=USR2@120` of the script sends the same signal to the step's processes 120 s before the time limit.
TEST_F(Slurm, AJobThatIsSignalledBeforeItsTimeLimitIsQueuedAgainAndContinues) {
  const std::string home = temporary("requeued");
  std::filesystem::create_directory(home);
  std::string script = contents_of(LOCKSTEP_SLURM_SCRIPT);
  for (const auto& [what, by] :
       {std::pair<std::string, std::string>{"srun lockrun -n 4", "srun " LOCKRUN " -n 1 --no-prefix"},
        {"./train", RESUME_RANK " loop=own preempt=1 pause_ms=100 epochs=20 folder=" + home + "/run losses=" + home +
                        "/losses"}}) {
    ASSERT_EQ(count(script, what), 1) << what;
    script = replaced(script, what, by);
  }
  std::ofstream(home + "/job.sh") << script;
  std::ofstream(home + "/.lockstep-token") << "a user's secret\n";
  std::filesystem::permissions(home + "/.lockstep-token", std::filesystem::perms(0600));
  const auto made = [&] { return count(contents_of(home + "/losses"), "\n"); };
  const auto job = run({"sbatch", "--job-name=requeued", "--output=" + home + "/job.out", home + "/job.sh"},
                       {{"HOME", home}, {"LOCKSTEP_TOKEN", ""}});
  EXPECT_EQ(job->wait(kSlow), 0) << job->errors();
  ASSERT_TRUE(poll_until([&] { return made() >= 3; }, kSlow)) << contents_of(home + "/job.out");
  lab_->ask({"scancel", "--name=requeued", "--signal=USR2"});
  EXPECT_TRUE(poll_until([&] { return made() == 140; }, kSlow)) << contents_of(home + "/job.out");
  EXPECT_TRUE(lab_->becomes_idle());
  const std::string jobs = lab_->ask({"scontrol", "show", "jobs"});
  EXPECT_FALSE(find_match(jobs, "JobName=requeued[^]*?JobState=COMPLETED[^]*?Restarts=1").empty())
      << "not queued again: " << jobs << contents_of(home + "/job.out");
  EXPECT_EQ(made(), 140) << "each step once";
  std::filesystem::remove_all(home);
}

// -- docs/launching.md
// ----------------------------------------------------------------------------------------------------

// The page's code blocks of "bash", with the tests' programs: batch scripts, or commands.
enum class Kind { kCommand, kBatchScript };
std::vector<std::string> code_of_page(Kind kind) {
  std::ifstream file(LOCKSTEP_SLURM_PAGE);
  const std::string page(std::istreambuf_iterator<char>(file), {}), fence = "```bash\n";
  std::vector<std::string> pieces;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    const std::string piece =
        replaced(page.substr(at, page.find("```", at) - at), "./train", COLLECTIVE_RANK " steps=10");
    const bool is_script = piece.rfind("#!", 0) == 0;
    if (is_script == (kind == Kind::kBatchScript))
      pieces.push_back(replaced(piece, "lockrun ", LOCKRUN " --no-prefix "));
  }
  return pieces;
}

TEST_F(Slurm, ThePagesCommands) {
  const auto commands = code_of_page(Kind::kCommand);
  ASSERT_EQ(commands.size(), 3u);
  for (const std::string& command : commands) {
    const auto job = run({"sh", "-c", command});
    EXPECT_EQ(job->wait(kSlow), 0) << command << job->errors();
    EXPECT_EQ(count(job->output(), " did 10 steps"), 8) << command << job->output() << job->errors();
  }
}

TEST_F(Slurm, ThePagesBatchScripts) {
  const auto scripts = code_of_page(Kind::kBatchScript);
  ASSERT_EQ(scripts.size(), 3u);
  const std::string home = temporary("home");
  std::filesystem::create_directory(home);
  std::ofstream(home + "/.lockstep-token") << "a user's secret\n";
  std::filesystem::permissions(home + "/.lockstep-token", std::filesystem::perms(0600));
  for (const std::string& script : scripts) {
    std::ofstream(home + "/job.sh") << script;
    const auto job = run({"sbatch", "--wait", "--output=" + home + "/job.out", home + "/job.sh"},
                         {{"HOME", home}, {"LOCKSTEP_TOKEN", ""}});
    EXPECT_EQ(job->wait(kSlow), 0) << job->errors();
    std::ifstream file(home + "/job.out");
    const std::string output(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(count(output, " did 10 steps"), 8) << script << output;
  }
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace lockstep::testing
