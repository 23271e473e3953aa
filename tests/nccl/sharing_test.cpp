// Ranks on one GPU: which may share it, the error for others, and the variables that NCCL's version needs. Also ranks
// that are processes, one of which dies in an all_reduce.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/nccl/nccl_backend.h"
#include "src/comm/nccl/nccl_rendezvous.h"
#include "tests/conformance/forked_ranks.h"
#include "tests/nccl/stub_nccl.h"
#include "tests/support/message_of.h"

namespace lockstep::testing {
namespace {

using nccl::GpuOfRank;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

StubNccl& stub() {
  static void* const kLibrary = dlopen(STUB_NCCL, RTLD_NOW | RTLD_LOCAL);
  return *reinterpret_cast<StubNcclControl>(dlsym(kLibrary, "stub_nccl_control"))();
}

TEST(SharedGpus, AreRefusedByNamingWhoSharesWhich) {
  nccl::check_sharing({{"GPU-a", 1}, {"GPU-b", 1}});
  nccl::check_sharing({{"GPU-a", 2}, {"GPU-a", 2}, {"GPU-b", 2}});
  EXPECT_THAT(
      message_of([] {
        nccl::check_sharing({{"GPU-a", 1}, {"GPU-b", 1}, {"GPU-a", 1}, {"GPU-b", 1}, {"GPU-b", 1}, {"GPU-c", 1}});
      }),
      AllOf(HasSubstr("nccl: ranks share a GPU: ranks 0 and 2 use GPU-a, ranks 1, 3 and 4 use GPU-b."),
            HasSubstr("`lockrun --share-gpu 3`, or LOCKSTEP_SHARE_GPU=3")));
  EXPECT_THAT(message_of([] {
                nccl::check_sharing({{"GPU-a", 2}, {"GPU-a", 2}, {"GPU-a", 2}});
              }),
              HasSubstr("ranks 0, 1 and 2 use GPU-a"));
  EXPECT_THAT(message_of([] {
                nccl::check_sharing({{"GPU-a", 2}, {"GPU-a", 1}});
              }),
              HasSubstr("ranks 0 and 1 use GPU-a"))
      << "one of the two does not allow it";
}

TEST(SharedGpus, AreToldToNcclAsItsVersionWants) {
  const std::vector<GpuOfRank> gpus = {{"GPU-a", 2}, {"GPU-b", 2}, {"GPU-a", 2}, {"GPU-b", 2}, {"GPU-c", 2}};
  for (const int version : {NCCL_VERSION(2, 19, 3), NCCL_VERSION(2, 28, 9), NCCL_VERSION(2, 29, 7)}) {
    EXPECT_THAT(nccl::environment_for_sharing(gpus, 0, version, "here"), ElementsAre(Pair("NCCL_HOSTID", "here-0")));
    EXPECT_THAT(nccl::environment_for_sharing(gpus, 1, version, "here"), ElementsAre(Pair("NCCL_HOSTID", "here-0")))
        << "ranks with a GPU each stay on one machine";
    EXPECT_THAT(nccl::environment_for_sharing(gpus, 2, version, "here"), ElementsAre(Pair("NCCL_HOSTID", "here-1")));
    EXPECT_THAT(nccl::environment_for_sharing(gpus, 3, version, "here"), ElementsAre(Pair("NCCL_HOSTID", "here-1")));
  }
  for (const int rank : {0, 3})
    EXPECT_THAT(nccl::environment_for_sharing(gpus, rank, NCCL_VERSION(2, 30, 0), "here"),
                ElementsAre(Pair("NCCL_MULTI_RANK_GPU_ENABLE", "1")));
  for (const int version : {NCCL_VERSION(2, 28, 9), NCCL_VERSION(2, 30, 0)})
    EXPECT_THAT(nccl::environment_for_sharing({{"GPU-a", 1}, {"GPU-b", 1}}, 1, version, "here"), IsEmpty());
}

TEST(Algorithms, MustBeTheSameOnAllRanks) {
  nccl::check_algorithms({{"GPU-a", 1, ""}, {"GPU-b", 1, ""}});
  nccl::check_algorithms({{"GPU-a", 1, "Ring"}, {"GPU-b", 1, "Ring"}});
  EXPECT_THAT(message_of([] {
                nccl::check_algorithms({{"GPU-a", 1, ""}, {"GPU-b", 1, ""}, {"GPU-c", 1, "^NVLS,NVLSTree"}});
              }),
              AllOf(HasSubstr("rank 0 has , but rank 2 has ^NVLS,NVLSTree"), HasSubstr("alike on all ranks")));
}

constexpr const char* kReproducible = "^NVLS,NVLSTree";

// The caller's variables are not changed, so there is nothing to check.
const char* set_by_the_caller() {
  const char* const algorithm = std::getenv("NCCL_ALGO");
  if (algorithm != nullptr && std::strcmp(algorithm, kReproducible) != 0) return "NCCL_ALGO is set by the caller";
  return std::getenv("NCCL_HOSTID") != nullptr ? "NCCL_HOSTID is set by the caller" : nullptr;
}

// The value of NCCL_ALGO in this process, which LOCKSTEP_DETERMINISTIC has chosen before main().
std::string chosen_algorithm() { return env::text(env::kDeterministic) == "1" ? kReproducible : "unset"; }

// Another thread may be reading the environment.
TEST(EnvironmentOfNccl, ChangesBeforeMainOrWhereRanksShareAGpu) {
  if (const char* const reason = set_by_the_caller()) GTEST_SKIP() << reason;
  const char* const algorithm = std::getenv("NCCL_ALGO");
  EXPECT_EQ(algorithm == nullptr ? "unset" : algorithm, chosen_algorithm());
  nccl::prepare_environment({{"GPU-a", 1}, {"GPU-b", 1}}, 0, NCCL_VERSION(2, 28, 9));
  EXPECT_EQ(std::getenv("NCCL_ALGO"), algorithm);
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), nullptr);
  nccl::prepare_environment({{"GPU-a", 2}, {"GPU-a", 2}}, 0, NCCL_VERSION(2, 28, 9));
  const char* const machine = std::getenv("NCCL_HOSTID");
  ASSERT_NE(machine, nullptr);
  nccl::prepare_environment({{"GPU-a", 2}, {"GPU-a", 2}}, 0, NCCL_VERSION(2, 28, 9));
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), machine) << "written again, with the same text";
  unsetenv("NCCL_HOSTID");
}

// Two ranks with the GPU of that number each, as processes: returns their errors, or the variables that NCCL would find
// in their environment.
std::vector<RankReport> share_one(int version, const char* share, const char* algorithm) {
  return run_processes(
      {.wire = Wire::kNccl, .ranks = 2, .device_of_rank = {0, 0}},
      [](Rank&, RankReport&) {
        const auto text = [](const char* name) {
          return std::string(name) + "=" + env::text(name).value_or("unset") + " ";
        };
        throw Error("{}{}{}", text("NCCL_HOSTID"), text("NCCL_MULTI_RANK_GPU_ENABLE"), text("NCCL_ALGO"));
      },
      [=](int) {
        stub().version.store(version);
        if (share != nullptr) setenv(env::kShareGpu, share, 1);
        if (algorithm != nullptr) setenv("NCCL_ALGO", algorithm, 1);
        return true;
      });
}

TEST(SharedGpus, AreRefusedOnAllRanksUnlessAllowed) {
  if (const char* const reason = set_by_the_caller()) GTEST_SKIP() << reason;
  for (const RankReport& report : share_one(22809, nullptr, nullptr))
    EXPECT_THAT(report.text(),
                AllOf(HasSubstr("ranks 0 and 1 use GPU-recorded-0"), HasSubstr("lockrun --share-gpu 2")));
  const auto older = share_one(22809, "2", nullptr);
  for (std::size_t rank : {0U, 1U})
    EXPECT_THAT(older[rank].text(),
                AllOf(HasSubstr("-" + std::to_string(rank) +
                                " NCCL_MULTI_RANK_GPU_ENABLE=unset NCCL_ALGO=" + chosen_algorithm())));
  for (const RankReport& report : share_one(23000, "2", "Ring"))
    EXPECT_THAT(report.text(), HasSubstr("NCCL_HOSTID=unset NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_ALGO=Ring"));
}

// The variables of ranks 0 and 1 as `prepare` sets them; the ranks' errors.
std::vector<std::string> errors_with(const std::function<void(int rank)>& prepare) {
  std::vector<std::string> errors;
  for (const RankReport& report : run_processes(
           {.wire = Wire::kNccl, .ranks = 2}, [](Rank&, RankReport&) {},
           [&](int rank) {
             prepare(rank);
             return true;
           }))
    errors.push_back(report.text());
  return errors;
}

TEST(Algorithms, ThatDifferAreRefusedOnAllRanks) {
  const auto errors = errors_with([](int rank) {
    setenv(env::kDeterministic, "0", 1);
    setenv("NCCL_ALGO", rank == 0 ? "Ring" : "Tree", 1);
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 has LOCKSTEP_DETERMINISTIC=0, NCCL_ALGO=Ring, but rank 1 has "
                                     "LOCKSTEP_DETERMINISTIC=0, NCCL_ALGO=Tree")));
}

TEST(Algorithms, ChosenTooLateOrUnreadableAreNamedOnAllRanks) {
  EXPECT_THAT(errors_with([](int rank) {
                setenv(env::kDeterministic, rank == 0 ? "0" : "01", 1);  // not as 1
                unsetenv("NCCL_ALGO");
              }),
              Each(HasSubstr("LOCKSTEP_DETERMINISTIC=1 was set after the program had started")));
  EXPECT_THAT(errors_with([](int rank) { setenv(env::kDeterministic, rank == 0 ? "yes" : "0", 1); }),
              Each(HasSubstr("LOCKSTEP_DETERMINISTIC")));
}

// The survivors' kernels wait for a dead rank: the CPU backend detects the death, and the communicator is aborted.
TEST(RanksAsProcesses, ADeathInAnAllReduceIsNamedAndEndsTheKernels) {
  const auto reports = run_processes({.wire = Wire::kNccl, .ranks = 3}, [](Rank& rank, RankReport& report) {
    rank.barrier();
    stub().stall.store(true);
    const int aborts = stub().aborts.load();
    std::vector<float> data(1000);
    const Work work = rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      report.stamp();
      raise(SIGKILL);
    }
    const Outcome outcome = outcome_of([&] { work.wait(); });
    report.stamp();
    if (stub().aborts.load() != aborts + 1) throw Error("the communicator was not aborted");
    throw PeerLost("{}", outcome.text);
  });
  for (const std::size_t survivor : {0U, 2U}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    EXPECT_THAT(reports[survivor].text(),
                AllOf(HasSubstr("all_reduce #2 (float32 x 1000, sum): rank 1 (pid "), HasSubstr("died")));
    EXPECT_LT(reports[survivor].seconds_after(reports[1]), death_is_told_within());
  }
}

// Two ranks as processes. NCCL finds a broken connection, and names no rank, before the failure detector has seen which
// rank died: rank 1 dies after rank 0's NCCL has reported it.
class NoticedByNcclFirst : public ::testing::Test {
 protected:
  NoticedByNcclFirst() : may_die_(shared_flag()) { stub().async_errors_told.store(0); }
  ~NoticedByNcclFirst() override { munmap(may_die_, sizeof *may_die_); }

  void await_word_of_nccl() const {
    while (stub().async_errors_told.load() == 0) std::this_thread::yield();
    may_die_->store(true);
  }
  void die_in_time() const {
    while (!may_die_->load()) std::this_thread::yield();
    raise(SIGKILL);
  }
  static void expect_named(const RankReport& survivor) {
    EXPECT_EQ(survivor.kind(), "peer lost") << survivor.text();
    EXPECT_THAT(survivor.text(), AllOf(HasSubstr("rank 1 "), HasSubstr(" died: ")));
  }

 private:
  static std::atomic<bool>* shared_flag() {
    void* const memory =
        mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error("mmap");
    return new (memory) std::atomic<bool>(false);
  }
  std::atomic<bool>* const may_die_;
};

TEST_F(NoticedByNcclFirst, ADeathInACallIsNamedAllTheSame) {
  const auto reports = run_processes({.wire = Wire::kNccl, .ranks = 2}, [this](Rank& rank, RankReport&) {
    rank.barrier();
    stub().stall.store(true);
    std::vector<float> data(1000);
    const Work work = rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    if (rank.rank() == 1) die_in_time();
    stub().async_error.store(ncclRemoteError);
    await_word_of_nccl();
    work.wait();
  });
  expect_named(reports[0]);
}

TEST_F(NoticedByNcclFirst, ADeathWhileTheCommunicatorIsMadeIsNamedAllTheSame) {
  const auto reports = run_processes(
      {.wire = Wire::kNccl, .ranks = 2}, [](Rank&, RankReport&) { throw Error("the group was made without rank 1"); },
      [this](int rank) {
        if (rank == 0) stub().async_error.store(ncclRemoteError);
        if (rank == 1) stub().polls_until_ready.store(kForEver);
        std::thread([this, rank] { rank == 0 ? await_word_of_nccl() : die_in_time(); }).detach();
        return true;
      });
  expect_named(reports[0]);
  EXPECT_THAT(reports[0].text(), HasSubstr("making NCCL's communicator"));
}

}  // namespace
}  // namespace lockstep::testing
