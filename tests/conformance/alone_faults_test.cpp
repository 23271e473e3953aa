// Failures that occur on one rank only and end the group for all: no memory left, no thread, a group destroyed during a
// call, a forked child.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <future>
#include <optional>

#include "src/comm/flight/flight_recorder.h"
#include "tests/conformance/forked_ranks.h"
#include "tests/conformance/ranks.h"
#include "tests/support/heap_count.h"
#include "tests/support/no_new_threads.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string name_of_wire(const ::testing::TestParamInfo<Wire>& tested) { return name_of(tested.param); }

class AloneFaults : public ::testing::TestWithParam<Wire> {
 protected:
  GroupSpec spec(int ranks) const { return {.wire = GetParam(), .ranks = ranks}; }
};

// Rank 1 has failed, and the others report that.
void expect_the_end_for_all(const std::vector<Outcome>& outcomes, const std::string& cause) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, "error") << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(cause));
  }
  for (const std::size_t other : {0u, 2u}) EXPECT_THAT(outcomes[other].text, HasSubstr("rank 1 cannot go on"));
}

TEST_P(AloneFaults, ARankWithoutMemoryEndsTheGroupForAll) {
  expect_the_end_for_all(outcomes_of_threads(spec(3),
                                             [](Rank& rank) {
                                               const std::size_t count = 100000;
                                               std::vector<float> data(count * 3);
                                               rank.barrier();
                                               if (rank.rank() == 1)
                                                 test_support::refuse_allocations_from(count * sizeof(float));
                                               rank.run(OperationKind::kAllToAll, data.data(), data.data(), count,
                                                        DType::kFloat32);
                                               rank.barrier();
                                             }),
                         "memory");
}

void start_without_a_thread(Rank& rank, const Operation& call) {
  const test_support::NoNewThreads no_new_threads;
  rank.backend().start(call);
}

TEST_P(AloneFaults, ARankWithoutAThreadEndsTheGroupForAll) {
  std::promise<void> refused;
  auto has_been_refused = refused.get_future().share();
  expect_the_end_for_all(
      outcomes_of_threads(spec(3),
                          [&](Rank& rank) {
                            float value = 1;
                            const Operation call = rank.reduction(&value, 1, DType::kFloat32, ReduceOp::kSum);
                            rank.barrier();
                            if (rank.rank() == 1) {
                              EXPECT_EQ(outcome_of([&] { start_without_a_thread(rank, call); }).kind, "error");
                              refused.set_value();
                              rank.barrier();  // must not wait for a call that no thread executes
                            }
                            has_been_refused.wait();
                            rank.backend().start(call).wait();
                          }),
      "communication thread cannot be started");
}

// Starts an all-reduce that the rank's communication thread then executes.
Work put_under_way(Rank& rank, std::vector<float>& data, FlightRecorder& recorder) {
  Operation call = rank.reduction(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum);
  call.flight = recorder.collective(call.signature, {}, FlightRecorder::By::kLater);
  const Work work = rank.backend().start(call);
  while (call.flight.slot->started.load() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));  // after recording the call, the thread executes it a moment later
  return work;
}

// A thread waits for a call while its rank destroys the group: it is released when the caller owns the buffer again.
TEST_P(AloneFaults, AWaiterOfADroppedGroupIsReleasedWhenItsBufferIsFree) {
  std::promise<void> under_way;
  run_threads(spec(2), [&](Rank& rank) {
    std::vector<float> data(300000, 1);
    rank.barrier();
    if (rank.rank() == 1) {
      under_way.get_future().wait();
      std::this_thread::sleep_for(milliseconds(200));
      return rank.all_reduce(data.data(), data.size());
    }
    FlightRecorder recorder;
    const Work work = put_under_way(rank, data, recorder);
    under_way.set_value();
    auto waiter = std::async(std::launch::async, [&] { return outcome_of([&] { work.wait(); }); });
    rank.leave();
    const Outcome outcome = waiter.get();
    EXPECT_EQ(outcome.kind, "none") << outcome.text;
    EXPECT_EQ(std::count(data.begin(), data.end(), 2.0f), 300000);
  });
}

INSTANTIATE_TEST_SUITE_P(Ring, AloneFaults,
                         ::testing::Values(Wire::kThreads, Wire::kMemfd, Wire::kTcp, Wire::kNodeThreads, Wire::kNodes),
                         name_of_wire);

// -- with processes

class AloneProcesses : public ::testing::TestWithParam<Wire> {};

// When its peer dies, the call under way is abandoned, and the group with it, without waiting for the call's deadline.
TEST_P(AloneProcesses, ADroppedGroupNoticesThatAPeerDies) {
  const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [](Rank& rank, RankReport& report) {
    std::vector<float> data(300000, 1);
    rank.barrier();
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(700));  // by now the others have destroyed the group
      report.stamp();
      raise(SIGKILL);
    }
    FlightRecorder recorder;
    const Work work = put_under_way(rank, data, recorder);
    rank.leave();
    work.wait();
  });
  for (const std::size_t survivor : {0u, 2u}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    EXPECT_LT(reports[survivor].seconds_after(reports[1]), death_is_told_within());
  }
}

// The child has copies of the parent's descriptors, and outlives it.
TEST_P(AloneProcesses, AForkedChildHidesNoDeath) {
  void* memory = mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const child = new (memory) pid_t(0);
  const auto reports = run_processes({.wire = GetParam(), .ranks = 3}, [child](Rank& rank, RankReport& report) {
    rank.barrier();
    if (rank.rank() == 1) {
      const pid_t forked = fork();
      if (forked == 0) {
        poll(nullptr, 0, 60'000);
        _exit(0);
      }
      *child = forked;
      report.stamp();
      raise(SIGKILL);
    }
    rank.barrier();
  });
  ASSERT_GT(*child, 0);
  EXPECT_EQ(kill(*child, SIGKILL), 0) << "the child was to outlive its parent";
  munmap(memory, sizeof(pid_t));
  for (const std::size_t survivor : {0u, 2u}) {
    EXPECT_EQ(reports[survivor].kind(), "peer lost") << reports[survivor].text();
    EXPECT_THAT(reports[survivor].text(), HasSubstr("rank 1 (pid "));
    EXPECT_LT(reports[survivor].seconds_after(reports[1]), death_is_told_within());
  }
}

INSTANTIATE_TEST_SUITE_P(Ring, AloneProcesses, ::testing::Values(Wire::kMemfd, Wire::kTcp, Wire::kNodes), name_of_wire);

// Captures a rank's stderr from here on.
class CapturedErrors {
 public:
  CapturedErrors() : memory_(memfd_create("errors", MFD_CLOEXEC)) { dup2(memory_, STDERR_FILENO); }
  std::string text() const {
    std::string text(static_cast<std::size_t>(lseek(memory_, 0, SEEK_END)), '\0');
    if (pread(memory_, text.data(), text.size(), 0) < 0) text = "cannot be read";
    return text;
  }

 private:
  int memory_;
};

// The machine's lowest rank makes the memory, and is not allowed to make a file of its size. One line explains the
// slowness.
TEST(Auto, ThatSharedMemoryFailedIsSaidOnce) {
  std::optional<CapturedErrors> errors;
  const auto limit_files = [&errors](int rank) {
    errors.emplace();
    const rlimit small{65536, 65536};
    return rank != 0 || (signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &small) == 0);
  };
  const auto say_the_wire = [&errors](Rank& rank, RankReport& report) {
    rank.barrier();
    note(report, {std::string(rank.backend().transport()), errors->text()});
  };
  const auto reports =
      run_processes({.wire = Wire::kMemfd, .ranks = 3, .transport = "auto"}, say_the_wire, limit_files);
  for (const RankReport& report : reports) EXPECT_EQ(report.kind(), "tcp") << report.text();
  EXPECT_THAT(reports[0].text(), AllOf(HasSubstr("ranks 0, 1, 2 are on one machine"), HasSubstr("exchange over TCP"),
                                       HasSubstr("Rank 0: cannot make "), HasSubstr("File too large")));
  for (const std::size_t other : {1u, 2u}) EXPECT_EQ(reports[other].text(), "");
}

}  // namespace
}  // namespace lockstep::testing
