// Failures must be named, on every rank, in time: mismatches, missing ranks, goodbyes, deaths, wrong tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "tests/conformance/forked_ranks.h"
#include "tests/conformance/ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Faults : public ::testing::TestWithParam<Wire> {
 protected:
  GroupSpec spec(int ranks) const { return {.wire = GetParam(), .ranks = ranks}; }
};

// Rank 1 of 3 makes a different call than the others.
void expect_mismatch(const GroupSpec& spec, const std::function<void(Rank&, void*)>& call, const std::string& one,
                     const std::string& other) {
  const auto outcomes = outcomes_of_threads(spec, [&](Rank& rank) {
    std::vector<std::byte> data(40000);
    rank.barrier();
    call(rank, data.data());
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr(one), HasSubstr(other)));
  }
}

TEST_P(Faults, AnotherOperationIsNamedOnAllRanks) {
  expect_mismatch(
      spec(3),
      [](Rank& rank, void* data) {
        rank.rank() == 1 ? rank.broadcast(data, 100, DType::kFloat32, 0) : rank.all_reduce(data, 100);
      },
      "all_reduce #2 (float32 x 100, sum)", "rank 1: broadcast #2 (float32 x 100, root 0)");
}

TEST_P(Faults, AnotherCountIsNamedOnAllRanks) {
  expect_mismatch(
      spec(3), [](Rank& rank, void* data) { rank.all_reduce(data, rank.rank() == 1 ? 10000 : 100); }, "float32 x 100,",
      "rank 1: all_reduce #2 (float32 x 10000, sum)");
}

TEST_P(Faults, AnotherTypeOrReductionIsNamedOnAllRanks) {
  expect_mismatch(
      spec(3),
      [](Rank& rank, void* data) { rank.all_reduce(data, 64, rank.rank() == 1 ? DType::kInt32 : DType::kFloat32); },
      "float32 x 64", "rank 1: all_reduce #2 (int32 x 64, sum)");
  expect_mismatch(
      spec(3),
      [](Rank& rank, void* data) {
        rank.all_reduce(data, 64, DType::kFloat32, rank.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum);
      },
      "float32 x 64, sum", "rank 1: all_reduce #2 (float32 x 64, max)");
}

TEST_P(Faults, AnotherPurposeIsNamedOnAllRanks) {
  expect_mismatch(
      spec(3),
      [](Rank& rank, void* data) {
        Operation call = rank.reduction(data, 64, DType::kFloat32, ReduceOp::kSum);
        call.purpose = {"bucket", rank.rank() == 1 ? 4 : 2};
        call.signature.purpose_index = call.purpose.index;
        rank.backend().run(call);
      },
      "(bucket 2, float32 x 64, sum)", "rank 1: all_reduce #2 (bucket 4, float32 x 64, sum)");
}

TEST_P(Faults, AnotherPositionInTheTrainingIsNamedOnAllRanks) {
  const auto call_of = [](Rank& rank, void* data, const PassState& pass) {
    Operation call = rank.reduction(data, 64, DType::kFloat32, ReduceOp::kSum);
    call.pass = pass;
    call.signature.pass = hash_of(pass);
    rank.backend().run(call);
  };
  const std::function<void(PassState&)> changes[] = {
      [](PassState& pass) { pass.updates = 6; }, [](PassState& pass) { pass.lr = 0.25F; },
      [](PassState& pass) { pass.trained_hash = 1; }, [](PassState& pass) { pass = {}; }};
  const std::string texts[] = {"optimizer steps before it: ", "learning rate: ", "set of trained parameters",
                               "in none"};
  const std::string odds[] = {"6 on rank 1", "0.25 on rank 1", "00000001 on rank 1", "rank 1"};
  for (std::size_t i = 0; i < 4; ++i)
    expect_mismatch(
        spec(3),
        [&](Rank& rank, void* data) {
          PassState pass{.wrapper = 1, .pass = 7, .updates = 5, .lr = 0.5F, .trained = 3};
          call_of(rank, data, pass);
          pass.pass = 8;
          if (rank.rank() == 1) changes[i](pass);
          call_of(rank, data, pass);
        },
        "out of step" + std::string(i == 3 ? ": " : " in the backward pass of step 8: ") + (i == 3 ? "" : texts[i]),
        odds[i]);
}

TEST_P(Faults, AnotherSizeOfRegisteredMemoryIsNamedOnAllRanks) {
  expect_mismatch(
      spec(3), [](Rank& rank, void*) { rank.backend().allocate(rank.rank() == 1 ? 8192 : 4096); },
      "allocate #1 (4096 bytes)", "rank 1: allocate #1 (8192 bytes)");
}

TEST_P(Faults, AfterAFailureTheGroupIsOver) {
  const auto outcomes = outcomes_of_threads(spec(2), [&](Rank& rank) {
    float data[100] = {};
    EXPECT_EQ(outcome_of([&] { rank.all_reduce(data, rank.rank() == 0 ? 100 : 99); }).kind, "mismatch");
    rank.all_reduce(data, 100);
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.kind, "mismatch") << outcome.text;
}

TEST_P(Faults, ARankThatStaysAwayIsNamedAtTheDeadline) {
  const auto outcomes = outcomes_of_threads(spec(3), [&](Rank& rank) {
    std::vector<float> data(50000);
    const auto start = std::chrono::steady_clock::now();  // before any rank can begin to wait for rank 2
    rank.all_reduce(data.data(), data.size());
    rank.set_timeout(milliseconds(300));
    if (rank.rank() == 2) std::this_thread::sleep_for(milliseconds(900));
    const Outcome outcome = outcome_of([&] { rank.all_reduce(data.data(), data.size()); });
    const auto took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(outcome.kind, "timeout") << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("all_reduce #2 (float32 x 50000, sum): "), HasSubstr("for rank 2 (pid "),
                                    HasSubstr("did not arrive"),
                                    ::testing::ContainsRegex(is_between_nodes(GetParam()) ? "waited [0-9]\\.[0-9] s"
                                                                                          : "waited 0\\.[3-9] s")));
    EXPECT_GE(took, milliseconds(290));
    EXPECT_LT(took, std::chrono::seconds(10));
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.kind, "none") << outcome.text;
}

TEST_P(Faults, ARankThatHasFinishedMayGoFirst) {
  run_threads(spec(4), [](Rank& rank) {
    for (int i = 0; i < 20; ++i) rank.barrier();
    std::this_thread::sleep_for(milliseconds(15 * rank.rank()));
  });
}

TEST_P(Faults, ARankThatLeftIsNamedWhenItIsNeeded) {
  const auto outcomes = outcomes_of_threads(spec(3), [](Rank& rank) {
    rank.barrier();
    if (rank.rank() == 1) return;
    rank.barrier();
  });
  EXPECT_EQ(outcomes[1].kind, "none") << outcomes[1].text;
  for (const int rank : {0, 2}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].kind, "peer lost");
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].text,
                AllOf(HasSubstr("barrier #2: rank 1 (pid "), HasSubstr("has left the group")));
  }
}

TEST_P(Faults, AbortWakesAllRanks) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = outcomes_of_threads(spec(3), [](Rank& rank) {
    rank.barrier();
    if (rank.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(50));
      rank.backend().abort("the loss is not finite");
    }
    std::vector<float> data(20000);
    rank.all_reduce(data.data(), data.size());
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "peer lost") << outcome.text;
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("all_reduce #2"), HasSubstr("rank 2 aborted the group: the loss is not finite")));
  }
}

TEST_P(Faults, WorkThrowsWhatEndedIt) {
  const auto outcomes = outcomes_of_threads(spec(2), [](Rank& rank) {
    rank.barrier();
    if (rank.rank() == 1) return;
    std::vector<float> data(20000);
    const Work first = rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    const Work second = rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(outcome_of([&] { second.wait(); }).kind, "peer lost");
    first.wait();
  });
  EXPECT_EQ(outcomes[0].kind, "peer lost") << outcomes[0].text;
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 (pid "));
}

INSTANTIATE_TEST_SUITE_P(Ring, Faults,
                         ::testing::Values(Wire::kThreads, Wire::kMemfd, Wire::kTcp, Wire::kNodeThreads, Wire::kNodes),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });

#ifdef STUB_NCCL
INSTANTIATE_TEST_SUITE_P(Nccl, Faults, ::testing::Values(Wire::kNccl),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
#endif

// -- with processes

class Deaths : public ::testing::TestWithParam<Wire> {};

TEST_P(Deaths, AKilledRankIsNamedByTheSurvivorsWithinTwoSeconds) {
  for (const int victim : {2, 0}) {
    const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [&](Rank& rank, RankReport& report) {
      const Buffer registered = rank.backend().allocate(400000);
      std::vector<float> plain(100000);
      for (int step = 0;; ++step) {
        if (rank.rank() == victim && step == 50) {
          report.stamp();
          raise(SIGKILL);
        }
        rank.all_reduce(registered.data(), 100000);
        rank.all_reduce(plain.data(), plain.size());
        rank.all_reduce(plain.data(), 1);
      }
    });
    EXPECT_EQ(reports[static_cast<std::size_t>(victim)].signal, SIGKILL);
    for (const RankReport& report : reports) {
      if (report.signal != 0) continue;
      EXPECT_EQ(report.kind(), "peer lost") << report.text();
      EXPECT_THAT(report.text(), AllOf(HasSubstr("all_reduce #"), HasSubstr("float32 x "),
                                       HasSubstr("rank " + std::to_string(victim) + " (pid "), HasSubstr("died")));
      EXPECT_LT(report.seconds_after(reports[static_cast<std::size_t>(victim)]), death_is_told_within());
    }
  }
}

// Without collectives that move data, since NCCL's stub moves it only between threads.
class DeathsInWaits : public Deaths {};

TEST_P(DeathsInWaits, SleepingSurvivorsAreWoken) {
  const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [&](Rank& rank, RankReport& report) {
    rank.barrier();
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));  // by now the others are asleep
      report.stamp();
      raise(SIGKILL);
    }
    rank.barrier();
  });
  for (const std::size_t survivor : {0u, 2u}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    EXPECT_THAT(reports[survivor].text(), AllOf(HasSubstr("barrier #2: rank 1 (pid "), HasSubstr("died")));
    EXPECT_LT(reports[survivor].seconds_after(reports[1]), death_is_told_within());
  }
}

// Rank 0 waits for a message of the victim, rank 2 for one of rank 0: both must be told of the death.
TEST_P(DeathsInWaits, SurvivorsThatWaitForMessagesAreWoken) {
  for (const bool in_mid_message : {false, true}) {
    const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [&](Rank& rank, RankReport& report) {
      std::vector<std::int32_t> data(10000003);
      const auto message = [&](int peer) {
        return Message{data.data(), data.size(), DType::kInt32, peer, 6, nullptr, std::chrono::seconds(30)};
      };
      // Before any rank reads, so that most of it is not on its way yet.
      const Work half_sent = rank.rank() == 1 && in_mid_message ? rank.backend().send(message(0)) : Work();
      rank.barrier();
      if (rank.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(100));
        report.stamp();
        raise(SIGKILL);
      }
      rank.backend().receive(message(rank.rank() == 0 ? 1 : 0)).wait();
    });
    for (const std::size_t survivor : {0u, 2u}) {
      EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
      EXPECT_THAT(reports[survivor].text(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("died")));
      EXPECT_LT(reports[survivor].seconds_after(reports[1]), death_is_told_within());
    }
  }
}

TEST_P(DeathsInWaits, AStoppedRankIsNamedAtTheDeadline) {
  const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [&](Rank& rank, RankReport&) {
    rank.barrier();
    rank.set_timeout(milliseconds(400));
    if (rank.rank() == 1) raise(SIGSTOP);
    rank.barrier();
  });
  for (const std::size_t survivor : {0u, 2u}) {
    EXPECT_EQ(reports[survivor].kind(), "timeout") << reports[survivor].text();
    EXPECT_THAT(reports[survivor].text(), HasSubstr("rank 1 (pid "));
  }
}

INSTANTIATE_TEST_SUITE_P(Ring, Deaths, ::testing::Values(Wire::kMemfd, Wire::kTcp, Wire::kNodes),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
INSTANTIATE_TEST_SUITE_P(Ring, DeathsInWaits, ::testing::Values(Wire::kMemfd, Wire::kTcp, Wire::kNodes),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
#ifdef STUB_NCCL
INSTANTIATE_TEST_SUITE_P(Nccl, DeathsInWaits, ::testing::Values(Wire::kNccl),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
#endif

// -- tokens and transports

TEST(Rendezvous, AWrongTokenIsRefusedOverSockets) {
  GroupSpec spec{.wire = Wire::kMemfd,
                 .ranks = 3,
                 .store_timeout = std::chrono::seconds(5),
                 .tokens = {"secret", "secret", "guess"}};
  const auto start = std::chrono::steady_clock::now();
  for (const Outcome& outcome : outcomes_of_threads(spec, [](Rank&) {})) {
    EXPECT_EQ(outcome.kind, "error") << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("token"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
}

TEST(Rendezvous, AWrongTokenIsRefusedOverTcp) {
  GroupSpec spec{
      .wire = Wire::kTcp, .ranks = 2, .store_timeout = std::chrono::seconds(2), .tokens = {"secret", "guess"}};
  const auto outcomes = outcomes_of_threads(spec, [](Rank&) {});
  EXPECT_EQ(outcomes[0].kind, "rendezvous") << outcomes[0].text;
  EXPECT_THAT(outcomes[0].text, HasSubstr("for ranks 1"));
  EXPECT_EQ(outcomes[1].kind, "rendezvous") << outcomes[1].text;
  EXPECT_THAT(outcomes[1].text, AllOf(HasSubstr("rank 1 cannot reach rank 0"), HasSubstr("token")));
}

TEST(Rendezvous, AnUnknownTransportIsAnError) {
  BackendContext context;
  context.transport = "pigeon";
  EXPECT_THROW(make_host_backend(context), InvalidArgument);
}

// A rank in another network namespace cannot reach the abstract socket, and so is not on the same machine.
TEST(Rendezvous, SharedMemoryThatCannotBeHadIsAnErrorThatNamesTheRank) {
  const auto reports = run_processes(
      {.wire = Wire::kMemfd, .ranks = 3, .store_timeout = std::chrono::seconds(5)}, [](Rank&, RankReport&) {},
      [](int rank) { return rank != 2 || enter_own_network(); });
  if (reports[2].exit_code == kSkipExitCode) GTEST_SKIP() << "this process may not make a network namespace";
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kind(), "error") << report.text();
    EXPECT_THAT(report.text(), AllOf(HasSubstr("transport shm was requested"), HasSubstr("rank 2: "),
                                     HasSubstr("not the same machine")));
  }
}

}  // namespace
}  // namespace lockstep::testing
