// Ranks started by hand that are killed, or restarted, while they wait for each other: real processes.
#include <gmock/gmock.h>

#include <csignal>

#include "lockstep/comm/store.h"
#include "lockstep/core/error.h"
#include "tests/faults/hand_job.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kLong = 40s;  // "at once" on a machine with much other work; the store's timeout is another hundred

const Environment kPatient = {{"LOCKSTEP_STORE_TIMEOUT_S", "140"}};

void await_registration(const HandJob& job, int rank) {
  const auto port = static_cast<std::uint16_t>(std::stoi(job.port()));
  connect_store({"127.0.0.1", port}, "", kLong)->get("group0/rendezvous/rank/" + std::to_string(rank), kLong);
}

std::string process_of(const Child& child, int rank) {
  return fmt::format("rank {} (process {} on ", rank, child.pid());
}

TEST(RendezvousByHand, ARankThatIsKilledIsNamedByThoseWhoWait) {
  HandJob job(4, kPatient);
  for (int rank = 0; rank < 3; ++rank) job.start(rank, {"steps=3"});
  for (int rank = 0; rank < 3; ++rank) await_registration(job, rank);
  job[1].signal(SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(job[rank].wait(kLong), kPeerLostExitCode) << job[rank].errors();
    EXPECT_THAT(job[rank].errors(),
                AllOf(HasSubstr(process_of(job[1], 1)), HasSubstr("has exited"), Not(HasSubstr("did not arrive"))));
  }
}

TEST(RendezvousByHand, WhenRankZeroIsKilledNobodyElseIsBlamed) {
  HandJob job(4, kPatient);
  for (int rank = 0; rank < 3; ++rank) job.start(rank, {"steps=3"});
  for (int rank = 0; rank < 3; ++rank) await_registration(job, rank);
  job[0].signal(SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(job[rank].wait(kLong), 1) << job[rank].errors();
    EXPECT_THAT(job[rank].errors(), AllOf(HasSubstr("the process that hosts the store, rank 0 or lockrun, has ended"),
                                          Not(HasSubstr("did not arrive")), Not(HasSubstr("has exited"))));
  }
}

// As a pod's container is restarted: alone.
TEST(RendezvousByHand, ARankThatIsStartedAgainTakesItsPlace) {
  Environment pod = kPatient;
  pod["KUBERNETES_SERVICE_HOST"] = "10.96.0.1";
  HandJob job(3, pod);
  job.start(0, {"steps=3"});
  job.start(1, {"steps=3"});
  for (const int rank : {0, 1}) await_registration(job, rank);
  job[1].signal(SIGKILL);
  job.start(1, {"steps=3"});
  job.start(2, {"steps=3"});
  for (const int started : {0, 2, 3}) EXPECT_EQ(job[started].wait(kLong), 0) << job[started].errors();
}

TEST(RendezvousByHand, WhoComesWhenAllHaveMetIsToldSo) {
  HandJob job(2);
  job.start_all({"steps=1000000", "pause_ms=10"});
  ASSERT_TRUE(job[1].wait_for_output("is running")) << job[1].errors();
  Child& late = job.start(1, {"steps=3"});
  EXPECT_EQ(late.wait(kLong), 1);
  EXPECT_THAT(late.errors(), HasSubstr("rank 1 arrived after all ranks of this job had met"));
}

}  // namespace
}  // namespace lockstep::testing
