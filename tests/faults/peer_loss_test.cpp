// A rank that dies, leaves or stays away during training: the others end soon, with a code and a message that name the
// cause, and nothing is left.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/faults/hand_job.h"
#include "tests/support/page.h"
#include "tests/support/temporary.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kPeerLost = 75;
// The guarantee is 2 s; a loaded machine under a sanitizer gets more.
constexpr auto kSoon = 10s;

struct Death {
  const char* how;
  int code;
};

void PrintTo(const Death& death, std::ostream* out) { *out << death.how; }

class PeerLoss : public ::testing::TestWithParam<std::tuple<const char*, Death>> {};

TEST_P(PeerLoss, SurvivorsNameTheRankThatIsGone) {
  const auto& [transport, death] = GetParam();
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", transport}});
  job.start_all({"steps=1000000", "fail_rank=1", "fail_at=50", std::string("how=") + death.how});
  EXPECT_EQ(job[1].wait(), death.code) << job[1].errors();
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(job[survivor].wait(kSoon), kPeerLost) << job[survivor].errors();
    EXPECT_THAT(job[survivor].errors(), HasSubstr("rank 1"));
    // It had done its part of #50; the others may still have been reading.
    EXPECT_THAT(job[survivor].errors(), AnyOf(HasSubstr("all_reduce #50"), HasSubstr("all_reduce #51")));
  }
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(job[rank].nothing_left());
}

INSTANTIATE_TEST_SUITE_P(
    EveryDeath, PeerLoss,
    ::testing::Combine(::testing::Values("shm", "tcp"),
                       ::testing::Values(Death{"kill", 128 + SIGKILL}, Death{"segv", 128 + SIGSEGV}, Death{"exit", 3},
                                         Death{"throw", 1}, Death{"leave", 0})),
    [](const auto& tested) { return std::string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param).how; });

class Transports : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(EveryWire, Transports, ::testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

// Without abort_on_error() they would be told only that it has left.
TEST_P(Transports, AGuardedRankTellsTheOthersWhatItThrew) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}});
  job.start_all({"steps=1000000", "fail_rank=1", "fail_at=50", "how=throw", "guarded=1"});
  EXPECT_EQ(job[1].wait(), 1);
  EXPECT_THAT(job[1].errors(), HasSubstr("error: this rank has had enough"));
  for (const int survivor : {0, 2}) {
    EXPECT_EQ(job[survivor].wait(kSoon), kPeerLost) << job[survivor].errors();
    EXPECT_THAT(job[survivor].errors(), HasSubstr("rank 1 aborted the group: this rank has had enough"));
  }
}

// The host of the store is a rank like any other: its death is noticed in the same way.
TEST_P(Transports, TheRankThatHostsTheStoreMayDieToo) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}});
  job.start_all({"steps=1000000", "fail_rank=0", "fail_at=50", "how=kill"});
  EXPECT_EQ(job[0].wait(), 128 + SIGKILL);
  for (const int survivor : {1, 2}) {
    EXPECT_EQ(job[survivor].wait(kSoon), kPeerLost) << job[survivor].errors();
    EXPECT_THAT(job[survivor].errors(), HasSubstr("rank 0"));
  }
}

TEST_P(Transports, AKillFromOutsideBetweenTwoStepsIsNoticed) {
  HandJob job(2, {{"LOCKSTEP_TRANSPORT", GetParam()}});
  job.start_all({"steps=1000000", "pause_ms=20"});
  ASSERT_TRUE(job[0].wait_for_output("rank 0 of 2 is running")) << job[0].errors();
  ASSERT_TRUE(job[1].wait_for_output("rank 1 of 2 is running")) << job[1].errors();
  job[1].signal(SIGKILL);
  EXPECT_EQ(job[1].wait(), 128 + SIGKILL);
  EXPECT_EQ(job[0].wait(kSoon), kPeerLost);
  EXPECT_THAT(job[0].errors(), HasSubstr("rank 1"));
}

// torchrun and mpirun name the first process that exits as the cause. torchrun reads the reason from a file, and takes
// the earliest.
TEST(OtherLaunchers, SurvivorsLeaveAfterTheRankThatFailed) {
  const std::string folder = temporary("error-files");
  std::filesystem::create_directories(folder);
  HandJob job(2);
  const auto file_of = [&](int rank) { return folder + "/" + std::to_string(rank) + ".json"; };
  for (const int rank : {0, 1})
    job.start(rank, {"steps=1000000", "pause_ms=20", "fail_rank=1", "fail_at=5", "how=throw"},
              {{"TORCHELASTIC_ERROR_FILE", file_of(rank)}});
  EXPECT_EQ(job[1].wait(), 1) << job[1].errors();
  EXPECT_EQ(job[0].wait(kSoon), kPeerLost) << job[0].errors();
  long when[2] = {};
  for (const int rank : {0, 1}) {
    const auto error = nlohmann::json::parse(text_of_file(file_of(rank)), nullptr, false);
    ASSERT_FALSE(error.is_discarded()) << file_of(rank) << ": " << text_of_file(file_of(rank));
    EXPECT_THAT(error["message"]["message"].get<std::string>(),
                HasSubstr(rank == 1 ? "this rank has had enough" : "rank 1"));
    when[rank] = std::stol(error["message"]["extraInfo"]["timestamp"].get<std::string>());
  }
  EXPECT_LT(when[1], when[0]);
  std::filesystem::remove_all(folder);
}

// A killed rank writes no file. For torchrun it failed when torchrun noticed its end, up to some seconds later.
TEST(OtherLaunchers, ASurvivorGivesTheCauseAHeadStart) {
  const std::string folder = temporary("error-files");
  std::filesystem::create_directories(folder);
  HandJob job(2);
  for (const int rank : {0, 1})
    job.start(rank, {"steps=1000000", "pause_ms=20"},
              {{"TORCHELASTIC_ERROR_FILE", folder + "/" + std::to_string(rank) + ".json"}});
  for (const int rank : {0, 1}) ASSERT_TRUE(job[rank].wait_for_output("is running")) << job[rank].errors();
  const auto killed = std::chrono::steady_clock::now();
  job[1].signal(SIGKILL);
  EXPECT_EQ(job[0].wait(kSoon), kPeerLost) << job[0].errors();
  EXPECT_GE(std::chrono::steady_clock::now() - killed, 500ms);
  const auto error = nlohmann::json::parse(text_of_file(folder + "/0.json"), nullptr, false);
  ASSERT_FALSE(error.is_discarded());
  EXPECT_GE(std::stol(error["message"]["extraInfo"]["timestamp"].get<std::string>()), std::time(nullptr) + 30);
  // It logs the reason before it waits: a launcher that ends it meanwhile takes nothing from the log.
  struct stat file {};
  ASSERT_EQ(::stat((folder + "/0.json").c_str(), &file), 0);
  const double written = static_cast<double>(file.st_mtim.tv_sec) + 1e-9 * static_cast<double>(file.st_mtim.tv_nsec);
  EXPECT_GE(written - job[0].last_error_written(), 0.4);
  std::filesystem::remove_all(folder);
}

TEST_P(Transports, AStoppedRankIsNamedAtTheDeadline) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}, {"LOCKSTEP_TIMEOUT_S", "2"}});
  job.start_all({"steps=1000000", "fail_rank=2", "fail_at=50", "how=stop"});
  for (const int waiting : {0, 1}) {
    EXPECT_THAT(job[waiting].wait(2s + kSoon), AnyOf(1, kPeerLost)) << job[waiting].errors();
    EXPECT_THAT(job[waiting].errors(), HasSubstr("rank 2"));
    EXPECT_THAT(job[waiting].errors(), HasSubstr("all_reduce #51"));
  }
  EXPECT_EQ(job[2].alive().size(), 1u) << "it is stopped";
}

// Long before the deadline, since it sends no heartbeat. Rank 0 hosts the store.
TEST_P(Transports, AStoppedHostOfTheStoreIsNamedAfterTheStallTimeout) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}, {"LOCKSTEP_STALL_TIMEOUT_S", "2"}});
  job.start_all({"steps=1000000", "fail_rank=0", "fail_at=50", "how=stop"});
  for (const int waiting : {1, 2}) {
    EXPECT_EQ(job[waiting].wait(2s + kSoon), kPeerLost) << job[waiting].errors();
    EXPECT_THAT(job[waiting].errors(), HasSubstr("rank 0 (pid " + std::to_string(job[0].pid()) + " on host "));
    EXPECT_THAT(job[waiting].errors(), HasSubstr("has sent no heartbeat for 2.0 s"));
  }
}

// Ctrl-Z and fg: neither silence nor deadlines count while all are stopped.
TEST_P(Transports, AJobThatIsStoppedAsAWholeGoesOnAfterwards) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}, {"LOCKSTEP_STALL_TIMEOUT_S", "2"}, {"LOCKSTEP_TIMEOUT_S", "2"}});
  job.start_all({"steps=100", "pause_ms=10"});
  for (const int rank : {0, 1, 2})
    ASSERT_TRUE(job[rank].wait_for_output(fmt::format("rank {} of 3 is running", rank))) << job[rank].errors();
  for (const int rank : {0, 1, 2}) job[rank].signal(SIGSTOP);
  std::this_thread::sleep_for(5s);
  for (const int rank : {0, 1, 2}) job[rank].signal(SIGCONT);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(job[rank].wait(), 0) << job[rank].errors();
}

TEST_P(Transports, ARankThatStaysAwayIsNamedAtTheDeadline) {
  HandJob job(2, {{"LOCKSTEP_TRANSPORT", GetParam()}, {"LOCKSTEP_TIMEOUT_S", "1"}});
  job.start_all({"steps=1000000", "fail_rank=1", "fail_at=3", "how=stay_away"});
  EXPECT_EQ(job[0].wait(1s + kSoon), 1) << job[0].errors();
  EXPECT_THAT(job[0].errors(), HasSubstr("rank 1"));
}

TEST_P(Transports, RanksThatMakeDifferentCallsAllSayBothSides) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}});
  job.start_all({"steps=1000000", "count=1000", "fail_rank=1", "fail_at=7", "how=other_count"});
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(job[rank].wait(), 1) << job[rank].errors();
    EXPECT_THAT(job[rank].errors(), HasSubstr("float32 x 1000"));
    EXPECT_THAT(job[rank].errors(), HasSubstr("float32 x 999"));
  }
}

// A rank that is done is not lost: the last one may take its time to save.
TEST_P(Transports, AFinishedRankDisturbsNobody) {
  HandJob job(3, {{"LOCKSTEP_TRANSPORT", GetParam()}});
  for (const int rank : {0, 1, 2}) job.start(rank, {"steps=20", "linger_ms=" + std::to_string(rank == 0 ? 700 : 0)});
  for (const int rank : {2, 1, 0}) EXPECT_EQ(job[rank].wait(), 0) << job[rank].errors();
}

}  // namespace
}  // namespace lockstep::testing
