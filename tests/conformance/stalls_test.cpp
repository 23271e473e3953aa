// Heartbeats: a rank that sends none is named after the stall timeout, whichever it is; one that was stopped for a
// while is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>

#include "tests/conformance/forked_ranks.h"

namespace lockstep::testing {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Stalls : public ::testing::TestWithParam<Wire> {
 protected:
  GroupSpec spec(int ranks, milliseconds stall_timeout) const {
    return {.wire = GetParam(), .ranks = ranks, .timeout = seconds(60), .stall_timeout = stall_timeout};
  }
};

// Without collectives that move data between processes, which NCCL's stub does not.
class StallsInWaits : public Stalls {};

std::string after_the_call(const std::string& text) { return text.substr(std::min(text.size(), text.find(": "))); }

// Rank 0 would decide between group errors.
TEST_P(StallsInWaits, AStoppedRankIsNamedAfterTheStallTimeout) {
  for (const int victim : {1, 0}) {
    const auto reports = run_processes(spec(3, milliseconds(1500)), [&](Rank& rank, RankReport& report) {
      rank.barrier();
      if (rank.rank() == victim) {
        report.stamp();
        raise(SIGSTOP);
      }
      rank.barrier();
    });
    std::string told;
    for (int r = 0; r < 3; ++r) {
      const RankReport& report = reports[static_cast<std::size_t>(r)];
      if (r == victim) continue;
      EXPECT_EQ(report.kind(), "peer lost") << report.text();
      EXPECT_THAT(report.text(),
                  AllOf(HasSubstr("barrier #2: rank " + std::to_string(victim) + " (pid "), HasSubstr(" on host "),
                        HasSubstr("has sent no heartbeat for 1.5 s"), HasSubstr("#1")));
      const double took = report.seconds_after(reports[static_cast<std::size_t>(victim)]);
      EXPECT_GT(took, 0.8);
      EXPECT_LT(took, 8);
      RecordProperty("stall_seconds_" + std::to_string(r), std::to_string(took));
      if (told.empty()) told = report.text();
      EXPECT_EQ(report.text(), told);
    }
  }
}

TEST_P(StallsInWaits, ARankThatComputesForLongIsNotStalled) {
  run_threads(spec(3, milliseconds(1000)), [](Rank& rank) {
    rank.barrier();
    if (rank.rank() == 1) std::this_thread::sleep_for(milliseconds(3000));
    rank.barrier();
  });
}

TEST_P(Stalls, ARankThatGoesOnInTimeIsBlamedByNobodyAndBlamesNobody) {
  const auto reports = run_processes(spec(3, seconds(2)), [&](Rank& rank, RankReport&) {
    std::array<std::int32_t, 3> pids{};
    const std::int32_t mine = getpid();
    rank.all_gather(&mine, pids.data(), 1, DType::kInt32);
    if (rank.rank() == 1) raise(SIGSTOP);
    if (rank.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(1200));
      kill(pids[1], SIGCONT);
    }
    rank.barrier();
    std::this_thread::sleep_for(milliseconds(1200));
    rank.barrier();
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kind(), "") << report.text();
    EXPECT_EQ(report.signal, 0);
  }
}

TEST_P(Stalls, ARankThatGoesOnTooLateHearsTheSameAsTheOthers) {
  const auto reports = run_processes(spec(3, seconds(1)), [&](Rank& rank, RankReport&) {
    std::array<std::int32_t, 3> pids{};
    const std::int32_t mine = getpid();
    rank.all_gather(&mine, pids.data(), 1, DType::kInt32);
    if (rank.rank() == 0) raise(SIGSTOP);
    const Outcome outcome = outcome_of([&] {
      rank.barrier();  // the others' work before they gave up may be enough for rank 0
      rank.barrier();
    });
    const auto until = std::chrono::steady_clock::now() + seconds(8);
    if (rank.rank() == 1)  // stays until rank 0 is reaped: a stopped rank that is the last one is killed
      for (kill(pids[0], SIGCONT); kill(pids[0], 0) == 0 && std::chrono::steady_clock::now() < until;) usleep(5000);
    throw PeerLost("{}", outcome.text);
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(after_the_call(report.text()), after_the_call(reports[1].text()));
    EXPECT_THAT(report.text(), AllOf(HasSubstr(": rank 0 (pid "), HasSubstr("has sent no heartbeat for 1.0 s")));
  }
}

// The time for which the process was stopped extends the entire rest of a call, not only the current block. Rank 2 is
// slow in every block.
class Away : public ::testing::TestWithParam<Wire> {};
TEST_P(Away, ACallOfManyBlocksMayTakeAsMuchLonger) {
  const GroupSpec spec{.wire = GetParam(), .ranks = 3, .timeout = seconds(60), .stall_timeout = seconds(15)};
  const auto reports = run_processes(spec, [&](Rank& rank, RankReport&) {
    std::array<std::int32_t, 3> pids{};
    const std::int32_t mine = getpid();
    rank.all_gather(&mine, pids.data(), 1, DType::kInt32);
    std::vector<float> data(4 << 20, 1.0f);
    rank.barrier();
    if (rank.rank() == 0) rank.set_timeout(milliseconds(7000));
    std::thread other;
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
      kill(pids[0], SIGSTOP);
      std::this_thread::sleep_for(milliseconds(8500));
      kill(pids[0], SIGCONT);
      other = std::thread([&] {
        for (int i = 0; i < 50 && kill(pids[2], SIGSTOP) == 0; ++i) {
          std::this_thread::sleep_for(milliseconds(20));
          kill(pids[2], SIGCONT);
          std::this_thread::sleep_for(milliseconds(2));
        }
      });
    }
    const Outcome outcome = outcome_of([&] { rank.all_reduce(data.data(), data.size()); });
    if (other.joinable()) other.join();
    if (outcome.kind != "none" || data.front() + data.back() != 6.0f) throw Error("{} {}", outcome.text, data.front());
  });
  for (const RankReport& report : reports) EXPECT_EQ(report.kind(), "") << report.text();
}

// Longer than a TCP connection with a user timeout would wait for a peer that accepts nothing; the messages fill its
// window.
TEST(StallsOverTcp, ARankThatComesLateToALotOfDataIsNotLost) {
  run_threads({.wire = Wire::kTcp, .ranks = 2, .timeout = seconds(60)}, [](Rank& rank) {
    std::vector<float> data(8 << 20, 1.0f);
    rank.barrier();
    if (rank.rank() == 1) std::this_thread::sleep_for(seconds(11));
    rank.all_reduce(data.data(), data.size());
    EXPECT_EQ(data.front() + data.back(), 4.0f);
  });
}

TEST_P(StallsInWaits, ALateRankIsToldWithWhatItDidLast) {
  const auto outcomes = outcomes_of_threads(spec(3, milliseconds(1000)), [](Rank& rank) {
    Operation first = rank.operation(OperationKind::kBarrier, nullptr, nullptr, 0, DType::kUInt8);
    first.purpose = {"epoch", 7};
    first.signature.purpose_index = 7;
    rank.backend().run(first);
    if (rank.rank() == 2) std::this_thread::sleep_for(milliseconds(2500));
    rank.set_timeout(milliseconds(1500));
    rank.barrier();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "timeout") << outcome.text;
    EXPECT_THAT(outcome.text,
                AllOf(HasSubstr("for rank 2 (pid "), HasSubstr("; rank 2 has finished barrier #1 (epoch 7) "),
                      HasSubstr("it is in the program's own code")));
  }
}

// -- endings that concern all ranks, and one that does not

TEST_P(Stalls, AllSurvivorsOfADeathSayTheSame) {
  const auto reports = run_processes(spec(4, seconds(30)), [&](Rank& rank, RankReport& report) {
    for (int i = 0; i < 3; ++i) rank.barrier();
    if (rank.rank() == 2) {
      report.stamp();
      raise(SIGKILL);
    }
    std::vector<float> data(50000);
    const Work work = rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum));
    const Outcome first = outcome_of([&] { work.wait(); });
    report.stamp();
    EXPECT_EQ(first.kind, "peer lost");
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(after_the_call(outcome_of([&] { rank.barrier(); }).text), after_the_call(first.text));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5)) << "the group is over: nobody waits any more";
    throw PeerLost("{}", first.text);
  });
  for (const std::size_t survivor : {0u, 1u, 3u}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    EXPECT_EQ(reports[survivor].text(), reports[0].text());
    EXPECT_THAT(reports[survivor].text(),
                AllOf(HasSubstr("rank 2 (pid "), HasSubstr(" on host "), ::testing::ContainsRegex("#[23]")))
        << "the call that the rank which decides had finished with it";
    RecordProperty("death_ms_" + std::to_string(survivor),
                   std::to_string(1e3 * reports[survivor].seconds_after(reports[2])));
  }
}

TEST_P(StallsInWaits, AbortReachesMessagesAsyncWorkAndTheProgramsOwnCode) {
  const auto outcomes = outcomes_of_threads(spec(4, seconds(30)), [](Rank& rank) {
    rank.barrier();
    std::vector<float> data(20000);
    std::int32_t value = 0;
    switch (rank.rank()) {
      case 0: return rank.backend().receive({&value, 1, DType::kInt32, 3, 1, nullptr, seconds(60)}).wait();
      case 1:
        return rank.backend().start(rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum)).wait();
      case 2: std::this_thread::sleep_for(milliseconds(600)); return rank.barrier();
      default:
        std::this_thread::sleep_for(milliseconds(200));
        rank.backend().abort("the loss is not finite");
        rank.barrier();
    }
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "peer lost") << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank 3 aborted the group: the loss is not finite"));
  }
}

// exit() does not run the destructors of local variables.
TEST_P(StallsInWaits, AProcessThatExitsWellHasLeft) {
  const auto reports = run_processes(spec(3, seconds(30)), [&](Rank& rank, RankReport& report) {
    if (rank.rank() == 2) {
      report.stamp();  // before the barrier: the others' 200 ms begin in it, however long this process then waits for a
                       // core
      rank.barrier();
      exit(0);
    }
    rank.barrier();
    std::int32_t value = rank.rank();
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      if (rank.rank() == 0) rank.backend().send({&value, 1, DType::kInt32, 1, 1, nullptr, seconds(20)}).wait();
      if (rank.rank() == 1) rank.backend().receive({&value, 1, DType::kInt32, 0, 1, nullptr, seconds(20)}).wait();
    }
    rank.barrier();
  });
  for (const std::size_t survivor : {0u, 1u}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    // The first rank that needs rank 2 ends the group, perhaps while the other still waits for the end of their last
    // message.
    EXPECT_THAT(reports[survivor].text(),
                AllOf(::testing::ContainsRegex("^(barrier #2|send to rank 1 .*|recv from rank 0 .*): rank 2 .pid "),
                      HasSubstr("has left the group")));
    EXPECT_GT(reports[survivor].seconds_after(reports[2]), 0.15) << "until they needed it";
  }
}

INSTANTIATE_TEST_SUITE_P(Ring, Away, ::testing::Values(Wire::kTcp, Wire::kNodes),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
INSTANTIATE_TEST_SUITE_P(Ring, Stalls, ::testing::Values(Wire::kMemfd, Wire::kTcp),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
INSTANTIATE_TEST_SUITE_P(Ring, StallsInWaits, ::testing::Values(Wire::kMemfd, Wire::kTcp),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
#ifdef STUB_NCCL
INSTANTIATE_TEST_SUITE_P(Nccl, StallsInWaits, ::testing::Values(Wire::kNccl),
                         [](const ::testing::TestParamInfo<Wire>& tested) {
                           return std::string(name_of(tested.param));
                         });
#endif

}  // namespace
}  // namespace lockstep::testing
