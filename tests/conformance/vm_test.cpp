// Ranks that reach into each other's ordinary memory: what the system refuses, at the start or in the middle, and peers that
// are gone. That the results are right is for the suite, where these are wires like others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "tests/conformance/forked_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 1 << 20, kHalf = kBytes / 2;

// A megabyte that this process cannot touch in the given half. Never given back: the process ends soon.
std::byte* memory_with_a_hole(std::size_t hole_at, int protection) {
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(static_cast<std::byte*>(memory) + hole_at, kHalf, protection) != 0) throw Error("mmap");
  return static_cast<std::byte*>(memory);
}

// Two processes of one parent, as ranks are: a kernel may refuse it (Yama, a container's filter), and then groups use tiles.
bool siblings_reach_each_other() {
  static std::int32_t word = 1;
  int ready[2];
  if (pipe(ready) != 0) return false;
  const pid_t owner = fork();
  if (owner == 0) {
    word = 2;
    prctl(PR_SET_PTRACER, static_cast<unsigned long>(getppid()), 0, 0, 0);
    if (::write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  const pid_t reader = fork();
  if (reader == 0) {
    char byte = 0;
    std::int32_t copy = 0;
    const iovec local{&copy, sizeof copy}, remote{&word, sizeof word};
    _exit(read(ready[0], &byte, 1) == 1 && process_vm_readv(owner, &local, 1, &remote, 1, 0) == sizeof copy && copy == 2 ? 0 : 1);
  }
  int status = 1;
  waitpid(reader, &status, 0);
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  for (const int end : ready) close(end);
  return status == 0;
}

class ReachingWherePeersHaveNoMemory : public ::testing::Test {
  void SetUp() override {
    if (!siblings_reach_each_other()) GTEST_SKIP() << "the kernel lets no process read another one's memory here";
  }
};

// Rank 0 owns the first half of the sum, and rank 1's first half is not there.
TEST_F(ReachingWherePeersHaveNoMemory, MemoryThatIsNotThereIsNamedOnAllRanks) {
  const auto reports = run_processes({.wire = Wire::kMemfdVm, .ranks = 2}, [](Rank& rank, RankReport&) {
    std::byte* data = memory_with_a_hole(0, rank.rank() == 1 ? PROT_NONE : PROT_READ | PROT_WRITE);
    rank.all_reduce(data, kBytes / 4);
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kind(), "error") << report.text();
    EXPECT_THAT(report.text(), AllOf(HasSubstr("all_reduce #1 (float32 x 262144, sum): rank 0 could not read 16384 bytes at byte 0 of the "
                                               "buffer of rank 1 (pid "),
                                     HasSubstr("Bad address")));
  }
}

TEST_F(ReachingWherePeersHaveNoMemory, MemoryThatMayNotBeWrittenIsNamedOnAllRanks) {
  const auto reports = run_processes({.wire = Wire::kMemfdVm, .ranks = 2}, [](Rank& rank, RankReport&) {
    std::byte* data = memory_with_a_hole(kHalf, rank.rank() == 0 ? PROT_READ : PROT_READ | PROT_WRITE);
    rank.all_reduce(data, kBytes / 4);
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kind(), "error") << report.text();
    EXPECT_THAT(report.text(), AllOf(HasSubstr("rank 1 could not write 16384 bytes at byte 524288 of the buffer of rank 0 (pid "),
                                     HasSubstr("read-only")));
  }
}

// The copy ends at a page in the middle of a piece: what was copied until then does not count.
TEST_F(ReachingWherePeersHaveNoMemory, ABufferThatEndsTooEarlyIsNamedByWhoPullsFromIt) {
  const auto reports = run_processes({.wire = Wire::kMemfdVm, .ranks = 3}, [](Rank& rank, RankReport&) {
    std::byte* data = memory_with_a_hole(kHalf, rank.rank() == 2 ? PROT_NONE : PROT_READ | PROT_WRITE);
    rank.broadcast(data, kBytes, DType::kUInt8, 2);
  });
  for (const RankReport& report : reports) {
    EXPECT_EQ(report.kind(), "error") << report.text();
    EXPECT_THAT(report.text(), AllOf(HasSubstr("broadcast #1"), HasSubstr("bytes at byte 0 of the buffer of rank 2 (pid ")));
  }
}

// What Yama, a container or another user's process refuses, a process refuses that is not dumpable.
bool hide_from_other_processes(int) {
  if (geteuid() == 0 && (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)) return false;
  return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

TEST(ReachingIntoPeers, WhereItIsRefusedAllRanksUseTilesInstead) {
  const auto reports = run_processes(
      {.wire = Wire::kMemfdVm, .ranks = 3},
      [](Rank& rank, RankReport&) {
        std::int32_t pids[3] = {};
        const std::int32_t mine = getpid();
        rank.all_gather(&mine, pids, 1, DType::kInt32);
        std::int32_t copy = 0;
        const iovec local{&copy, sizeof copy}, remote{pids, sizeof copy};  // forked from one parent: alike laid out
        const bool allowed = process_vm_readv(pids[(rank.rank() + 1) % 3], &local, 1, &remote, 1, 0) >= 0 || errno != EPERM;
        std::vector<std::int32_t> data(300000, rank.rank() + 1);
        rank.all_reduce(data.data(), data.size(), DType::kInt32);
        for (const std::int32_t sum : data)
          if (sum != 6) throw Error("a sum is {}", sum);
        rank.broadcast(data.data(), data.size(), DType::kInt32, 1);
        if (allowed) throw Error("the system did not refuse: this test proved nothing");
      },
      hide_from_other_processes);
  if (reports[0].exit_code == kSkipExitCode) GTEST_SKIP() << "this process may not become another user";
  for (const RankReport& report : reports) EXPECT_EQ(report.kind(), "") << report.text();
}

// Survivors free their buffers as soon as the call has thrown; nobody may write there any more. They fill what they get
// next with a pattern and look at it a while later.
TEST(ReachingIntoPeers, NobodyWritesIntoBuffersOfACallThatFailed) {
  const auto reports = run_processes({.wire = Wire::kMemfdVm, .ranks = 3}, [](Rank& rank, RankReport&) {
    std::vector<std::byte> data(8 << 20);
    const auto step = [&] { rank.all_reduce(data.data(), data.size() / 4); };
    for (int i = 0; i < 3; ++i) step();
    if (rank.rank() == 2) {
      std::thread killer([] {
        usleep(1500);
        raise(SIGKILL);
      });
      while (true) step();
    }
    const Outcome outcome = outcome_of([&] {
      while (true) step();
    });
    std::fill(data.begin(), data.end(), std::byte{0x5a});
    usleep(50000);
    for (const std::byte byte : data)
      if (byte != std::byte{0x5a}) throw Error("a peer wrote after the call had failed");
    if (outcome.kind != "peer lost") throw Error("{}: {}", outcome.kind, outcome.text);
  });
  EXPECT_EQ(reports[2].signal, SIGKILL);
  for (const std::size_t survivor : {0u, 1u}) EXPECT_EQ(reports[survivor].kind(), "") << reports[survivor].text();
}

}  // namespace
}  // namespace lockstep::testing
