// Every way to start ranks other than lockrun, with real processes: by hand, under mpirun, alone; and the errors of
// each.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "lockstep/comm/capabilities.h"
#include "lockstep/core/error.h"
#include "tests/faults/hand_job.h"
#include "tests/support/limits_here.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

bool has_mpi() {
  const auto names = backend_names();
  return std::find(names.begin(), names.end(), "mpi") != names.end();
}

std::string line_of(int rank, int ranks, int steps, const char* transport) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " did " + std::to_string(steps) +
         " steps over " + transport;
}

TEST(Alone, IsRankZeroOfOne) {
  Child alone(collective_rank({"steps=3"}));
  EXPECT_EQ(alone.wait(), 0) << alone.errors();
  EXPECT_THAT(alone.output(), HasSubstr("rank 0 of 1 did 3 steps"));
}

TEST(ByHand, FourRanksMeetAndAgree) {
  for (const char* transport : {"shm", "tcp"}) {
    HandJob job(4, {{"LOCKSTEP_TRANSPORT", transport}});
    job.start_all({"steps=30", "count=12345"});
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(job[rank].wait(), 0) << job[rank].errors();
      EXPECT_THAT(job[rank].output(), HasSubstr(line_of(rank, 4, 30, transport)));
    }
  }
}

TEST(ByHand, RankZeroMayComeLast) {
  HandJob job(2);
  Child& early = job.start(1, {"steps=3"});
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(early.errors(), "");
  Child& late = job.start(0, {"steps=3"});
  EXPECT_EQ(late.wait(), 0) << late.errors();
  EXPECT_EQ(early.wait(), 0) << early.errors();
}

TEST(ByHand, ATokenFromAFileOrTheEnvironmentIsTheSame) {
  const std::string path = ::testing::TempDir() + "lockstep-token-" + std::to_string(::getpid());
  std::ofstream(path) << "a shared secret\n";
  HandJob job(2);
  job.start(0, {"steps=3"}, {{"LOCKSTEP_TOKEN_FILE", path}});
  job.start(1, {"steps=3"}, {{"LOCKSTEP_TOKEN", "a shared secret"}});
  EXPECT_EQ(job[0].wait(), 0) << job[0].errors();
  EXPECT_EQ(job[1].wait(), 0) << job[1].errors();
  std::filesystem::remove(path);
}

TEST(ByHand, AWrongTokenIsRefusedAndDoesNoHarm) {
  HandJob job(2, {{"LOCKSTEP_TOKEN", "right"}});
  job.start(0, {"steps=3"});
  Child& refused = job.start(1, {"steps=3"}, {{"LOCKSTEP_TOKEN", "wrong"}});
  EXPECT_EQ(refused.wait(), 1);
  EXPECT_THAT(refused.errors(), AllOf(HasSubstr("token was refused"), HasSubstr("127.0.0.1:" + job.port())));
  Child& member = job.start(1, {"steps=3"});
  EXPECT_EQ(member.wait(), 0) << member.errors();
  EXPECT_EQ(job[0].wait(), 0) << job[0].errors();
}

TEST(ByHand, WithoutATokenTheStoreStaysOnLoopback) {
  HandJob job(2, {{"MASTER_ADDR", "0.0.0.0"}});
  job.start_all({"steps=3"});
  for (const int rank : {0, 1}) {
    EXPECT_EQ(job[rank].wait(), 1);
    EXPECT_THAT(job[rank].errors(), AllOf(HasSubstr("LOCKSTEP_TOKEN"), HasSubstr("LOCKSTEP_INSECURE=1")));
  }
}

TEST(ByHand, WithoutATokenOnlyProcessesOfOneUserMeet) {
  if (!can_be_other_users()) GTEST_SKIP() << "to be two other users takes root, outside of user namespaces";
  if (std::system("command -v setpriv > /dev/null 2>&1") != 0) GTEST_SKIP() << "setpriv (util-linux) is not installed";
  for (const char* transport : {"shm", "tcp"}) {
    for (const bool is_one_user : {true, false}) {
      HandJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", is_one_user ? "60" : "3"}, {"LOCKSTEP_TRANSPORT", transport}});
      const auto as = [](int user) {
        const std::string number = std::to_string(user);
        std::vector<std::string> command = {"setpriv", "--reuid", number, "--regid", number, "--clear-groups"};
        const auto program = collective_rank({"steps=3"});
        command.insert(command.end(), program.begin(), program.end());
        return command;
      };
      job.start_command(0, as(100001));
      job.start_command(1, as(is_one_user ? 100001 : 100002));
      const int code = job[1].wait(120s);
      if (code == 126 || code == 127) GTEST_SKIP() << "another user may not run the programs: " << job[1].errors();
      EXPECT_EQ(code, is_one_user ? 0 : 1) << job[1].errors();
      EXPECT_EQ(job[0].wait(120s), is_one_user ? 0 : 1) << job[0].errors();
      EXPECT_THAT(job[1].errors(), HasSubstr(is_one_user ? "" : "without a token only processes of one user meet"));
      EXPECT_THAT(job[0].errors(),
                  HasSubstr(is_one_user ? "" : "is another user's or has closed, and the job has no token"));
    }
  }
}

TEST(ByHand, InsecureServesTheNetworkWithoutAToken) {
  for (const char* transport : {"shm", "tcp"}) {
    HandJob job(2, {{"MASTER_ADDR", "0.0.0.0"}, {"LOCKSTEP_INSECURE", "1"}, {"LOCKSTEP_TRANSPORT", transport}});
    job.start_all({"steps=3"});
    for (const int rank : {0, 1}) {
      EXPECT_EQ(job[rank].wait(), 0) << job[rank].errors();
      EXPECT_THAT(job[rank].output(), HasSubstr(line_of(rank, 2, 3, transport)));
    }
  }
}

TEST(ByHand, AStoreThatDoesNotAnswerIsNamed) {
  HandJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "1"}});
  Child& lonely = job.start(1, {"steps=3"});
  EXPECT_EQ(lonely.wait(20s), 1);
  EXPECT_THAT(lonely.errors(), HasSubstr("store at 127.0.0.1:" + job.port() + ": no answer within 1 s"));
}

TEST(ByHand, AMissingRankIsNamed) {
  HandJob job(3, {{"LOCKSTEP_STORE_TIMEOUT_S", "8"}});
  job.start(0, {"steps=3"});
  job.start(2, {"steps=3"});
  EXPECT_EQ(job[0].wait(30s), 1);
  EXPECT_THAT(job[0].errors(), HasSubstr("rank 1 of 3 did not arrive"));
  EXPECT_EQ(job[1].wait(30s), 1) << job[1].errors();
}

// Every 5 s, on each waiting rank.
TEST(ByHand, WhoWaitsSaysForWhom) {
  HandJob job(3);
  const auto says = [&](int nth, const std::string& text) {
    for (int tries = 0; tries < 2000 && job[nth].errors().find(text) == std::string::npos; ++tries)
      std::this_thread::sleep_for(10ms);
    EXPECT_THAT(job[nth].errors(), HasSubstr(text));
  };
  job.start(1, {"steps=3"});
  says(0, "(rank 1): waiting for the store at 127.0.0.1:" + job.port() + ", which rank 0 or lockrun serves (");
  job.start(0, {"steps=3"});
  for (const int nth : {0, 1}) says(nth, "): waiting for rank 2 of 3, ");
  job.start(2, {"steps=3"});
  for (const int nth : {0, 1, 2}) EXPECT_EQ(job[nth].wait(), 0) << job[nth].errors();
}

TEST(ByHand, ASecondProcessWithTheSameRankIsRefused) {
  HandJob job(3);
  job.start(0, {"steps=3"});
  Child* duplicates[] = {&job.start(1, {"steps=3"}), nullptr};
  duplicates[1] = &job.start(1, {"steps=3"});
  // One of the two is refused while the other still waits for rank 2.
  int refused = -1;
  for (int tries = 0; refused < 0 && tries < 2000; ++tries) {
    std::this_thread::sleep_for(5ms);
    for (const int duplicate : {0, 1})
      if (!duplicates[duplicate]->errors().empty()) refused = duplicate;
  }
  ASSERT_GE(refused, 0) << "both run";
  EXPECT_EQ(duplicates[refused]->wait(), 1);
  EXPECT_THAT(duplicates[refused]->errors(),
              HasSubstr("rank 1 is taken: process " + std::to_string(duplicates[1 - refused]->pid())));
  job.start(2, {"steps=3"});
  for (const int started : {0, 2 - refused, 3}) EXPECT_EQ(job[started].wait(), 0) << job[started].errors();
}

TEST(ByHand, WorldSizesThatDifferAreAnError) {
  HandJob job(2, {{"LOCKSTEP_STORE_TIMEOUT_S", "8"}});
  job.start(0, {"steps=3"});
  job.start(1, {"steps=3"}, {{"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}});
  for (const int rank : {0, 1}) EXPECT_EQ(job[rank].wait(30s), 1);
  EXPECT_THAT(job[0].errors() + job[1].errors(), HasSubstr("WORLD_SIZE must be the same everywhere"));
}

TEST(ByHand, APortInUseIsNamed) {
  HandJob first(2), second(2);
  first.start_all({"steps=1000000", "pause_ms=10"});
  ASSERT_TRUE(first[1].wait_for_output("is running")) << first[1].errors();
  Child& intruder = second.start(0, {"steps=3"}, {{"MASTER_PORT", first.port()}});
  EXPECT_EQ(intruder.wait(), 1);
  EXPECT_THAT(intruder.errors(), HasSubstr("127.0.0.1:" + first.port()));
}

struct BrokenEnvironment {
  const char* name;
  Environment environment;
  const char* named;  // in the message
};

class BrokenStart : public ::testing::TestWithParam<BrokenEnvironment> {};

TEST_P(BrokenStart, IsAnErrorThatNamesTheVariable) {
  Child rank(collective_rank({"steps=3"}), {.environment = GetParam().environment});
  EXPECT_EQ(rank.wait(20s), 2) << rank.errors();
  EXPECT_THAT(rank.errors(), HasSubstr(GetParam().named));
  EXPECT_EQ(rank.output(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Environment, BrokenStart,
    ::testing::Values(
        BrokenEnvironment{"rank_alone", {{"RANK", "0"}}, "WORLD_SIZE"},
        BrokenEnvironment{"world_alone", {{"WORLD_SIZE", "2"}}, "RANK"},
        BrokenEnvironment{"no_number", {{"RANK", "0"}, {"WORLD_SIZE", "two"}}, "WORLD_SIZE"},
        BrokenEnvironment{"half_a_number", {{"RANK", "0"}, {"WORLD_SIZE", "2x"}}, "2x"},
        BrokenEnvironment{"rank_outside", {{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "rank 2"},
        BrokenEnvironment{"negative", {{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK"},
        BrokenEnvironment{"no_address", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR"},
        BrokenEnvironment{"no_port", {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}, "MASTER_PORT"},
        BrokenEnvironment{"bad_port",
                          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "99999"}},
                          "MASTER_PORT"},
        BrokenEnvironment{"no_token_file", {{"LOCKSTEP_TOKEN_FILE", "/does/not/exist"}}, "/does/not/exist"}),
    [](const auto& tested) { return tested.param.name; });

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  }
  // mpirun sometimes loses the last output of ranks, so they report to a file.
  class Job {
   public:
    Job(int ranks, std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
      environment.insert({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
      arguments.push_back("report=" + report_);
      std::vector<std::string> words = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks)};
      for (const std::string& word : collective_rank(arguments)) words.push_back(word);
      child_ = std::make_unique<Child>(words, ChildOptions{.environment = std::move(environment)});
    }
    ~Job() { std::filesystem::remove(report_); }
    Child* operator->() { return child_.get(); }
    std::string report() const {
      std::stringstream text;
      text << std::ifstream(report_).rdbuf();
      return text.str();
    }

   private:
    static std::string new_report() {
      static int count = 0;
      return ::testing::TempDir() + "mpirun-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    }
    std::string report_ = new_report();
    std::unique_ptr<Child> child_;
  };
};

TEST_F(Mpirun, StartsAProgramAsItStands) {
  Job job(3, {"steps=20"});
  EXPECT_EQ(job->wait(60s), 0) << job->errors();
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(job.report(), HasSubstr(line_of(rank, 3, 20, "shm")));
}

TEST_F(Mpirun, OneRankIsAJobToo) {
  Job job(1, {"steps=4"});
  EXPECT_EQ(job->wait(60s), 0) << job->errors();
  EXPECT_THAT(job.report(), HasSubstr("rank 0 of 1 did 4 steps"));
}

// The counts differ, so it would be a mismatch if a rank of one job came to the other's store.
TEST_F(Mpirun, TwoJobsSideBySideDoNotMeet) {
  Job first(2, {"steps=40", "count=100", "pause_ms=10"});
  Job second(2, {"steps=30", "count=200", "pause_ms=10"});
  EXPECT_EQ(first->wait(60s), 0) << first->errors();
  EXPECT_EQ(second->wait(60s), 0) << second->errors();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(first.report(), HasSubstr(line_of(rank, 2, 40, "shm")));
    EXPECT_THAT(second.report(), HasSubstr(line_of(rank, 2, 30, "shm")));
  }
}

TEST_F(Mpirun, ADeadRankEndsTheJob) {
  Job job(3, {"steps=1000000", "fail_rank=2", "fail_at=50", "how=kill"});
  EXPECT_GT(job->wait(60s), 0) << job->errors();
  EXPECT_TRUE(job->nothing_left());
}

TEST_F(Mpirun, AnUnknownBackendIsTheSameErrorOnAllRanks) {
  Job job(2, {"steps=3"}, {{"LOCKSTEP_BACKEND", "pigeon"}});
  EXPECT_EQ(job->wait(60s), 2) << job->errors();
  const std::string line = "error: unknown backend 'pigeon': LOCKSTEP_BACKEND is one of host, ", report = job.report();
  const std::size_t first = report.find(line);
  ASSERT_NE(first, std::string::npos) << report;
  EXPECT_NE(report.find(line, first + 1), std::string::npos) << report;
}

// -- the mpi backend

TEST(ByHand, MpiIsAskedForWhereItIsNot) {
  HandJob job(2, {{"LOCKSTEP_BACKEND", "mpi"}});
  job.start_all({"steps=3"});
  for (const int rank : {0, 1}) {
    EXPECT_EQ(job[rank].wait(), 2);
    EXPECT_THAT(job[rank].errors(),
                HasSubstr(has_mpi() ? "start the program with mpirun -n 2, or use LOCKSTEP_BACKEND=host"
                                    : "backend 'mpi' is not in this build: install Open MPI's headers"));
  }
}

class MpiBackend : public Mpirun {
 protected:
  void SetUp() override {
    Mpirun::SetUp();
    if (!has_mpi()) GTEST_SKIP() << "this build has no mpi backend";
  }
  const std::map<std::string, std::string> mpi_ = {{"LOCKSTEP_BACKEND", "mpi"}, {"LOCKSTEP_TIMEOUT_S", "2"}};
};

TEST_F(MpiBackend, RunsAProgramAsItStandsAndEndsWell) {
  Job job(3, {"steps=20"}, mpi_);
  EXPECT_EQ(job->wait(60s), 0) << job->errors();
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(job.report(), HasSubstr(line_of(rank, 3, 20, "mpi")));
}

TEST_F(MpiBackend, RanksMayEndAtDifferentTimes) {
  Job job(3, {"steps=3", "linger_rank=0", "linger_ms=7000"}, mpi_);
  EXPECT_EQ(job->wait(60s), 0) << job->errors();
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(job.report(), HasSubstr(line_of(rank, 3, 3, "mpi")));
}

TEST_F(MpiBackend, AWorldOfOneNeedsNoMpirun) {
  Child alone(collective_rank({"steps=3"}), {.environment = mpi_});
  EXPECT_EQ(alone.wait(), 0) << alone.errors();
  EXPECT_THAT(alone.output(), HasSubstr("rank 0 of 1 did 3 steps over mpi"));
}

TEST_F(MpiBackend, ARankThatStaysAwayEndsTheWaitAtTheDeadline) {
  Job job(3, {"steps=20", "fail_rank=1", "fail_at=3", "how=stay_away"}, mpi_);
  EXPECT_GT(job->wait(30s), 0) << job->errors();
  EXPECT_THAT(job.report(),
              AllOf(HasSubstr("error: all_reduce #4 (float32 x 1000, sum): rank "), HasSubstr("waited 2.0 s")));
  EXPECT_TRUE(job->nothing_left());
}

// The abandoned call of one group is still under way: a call in another group, which would continue it, must not be
// made.
TEST_F(MpiBackend, ADeadlineInOneGroupEndsTheOthers) {
  Job job(3, {"steps=20", "fail_rank=1", "fail_at=3", "how=second_group"}, mpi_);
  EXPECT_GT(job->wait(30s), 0) << job->errors();
  EXPECT_THAT(job.report(),
              AllOf(HasSubstr("error: this process has abandoned MPI, for all groups, after: barrier #1: rank "),
                    HasSubstr("waited 2.0 s")));
}

TEST_F(MpiBackend, AbortWakesTheRankThatAborts) {
  Job job(3, {"steps=20", "fail_rank=1", "fail_at=3", "how=abort"},
          {{"LOCKSTEP_BACKEND", "mpi"}, {"LOCKSTEP_TIMEOUT_S", "100"}});
  EXPECT_EQ(job->wait(30s), kPeerLostExitCode) << job->errors();
  EXPECT_EQ(job.report().find("error: "), 0u);
  EXPECT_THAT(job.report(), HasSubstr("the process group was aborted: enough"));
  EXPECT_TRUE(job->nothing_left());
}

TEST_F(MpiBackend, AnotherCountIsNamed) {
  Job job(2, {"steps=20", "fail_rank=1", "fail_at=3", "how=other_count"}, mpi_);
  EXPECT_GT(job->wait(30s), 0) << job->errors();
  EXPECT_THAT(job.report(), AllOf(HasSubstr("rank 0: all_reduce #4 (float32 x 1000, sum)"),
                                  HasSubstr("rank 1: all_reduce #4 (float32 x 999, sum)")));
}

// The job does not wait for MPI_Finalize of a failed rank, nor for the deadline.
TEST_F(MpiBackend, ARankThatFailsOrDiesEndsTheJobAtOnce) {
  for (const char* how : {"how=throw", "how=kill"}) {
    const auto start = std::chrono::steady_clock::now();
    Job job(3, {"steps=20", "fail_rank=1", "fail_at=3", how},
            {{"LOCKSTEP_BACKEND", "mpi"}, {"LOCKSTEP_TIMEOUT_S", "100"}});
    EXPECT_GT(job->wait(60s), 0) << job->errors();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 20s) << how;
    EXPECT_TRUE(job->nothing_left());
  }
}

}  // namespace
}  // namespace lockstep::testing
