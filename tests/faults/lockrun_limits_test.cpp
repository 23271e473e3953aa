// lockrun names the limits of the system: processes, threads, the choice of cores.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "src/core/process/fd.h"
#include "src/core/process/process_limits.h"
#include "tests/faults/memory_group.h"
#include "tests/support/limits_here.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code;
  std::string output;  // stdout and stderr
};

// From now on the system call fails with EPERM in this process and those that it starts, as with a container's seccomp
// profile.
bool forbid(long call) {
  std::array<sock_filter, 4> program = {{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(call), 0, 1),
                                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter = {program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

constexpr int kNoFilter = 99;

// Runs a shell command, without the system call unless that is negative.
Outcome run(const std::string& command, long forbidden = -1) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {-1, "no pipe"};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    if (forbidden >= 0 && !forbid(forbidden)) ::_exit(kNoFilter);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  const Fd from(ends[0]);
  std::string output;
  for (char buffer[4096];;) {
    const ssize_t got = ::read(from.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    output.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

const std::string kJob = fmt::format("{} -n 2 {} steps=2 count=10", LOCKRUN, COLLECTIVE_RANK);

// Whatever cannot be started: the guard, a rank, the store's thread, a rank's own threads.
TEST(LockrunLimits, ThatNoFurtherProcessIsAllowedIsSaidByName) {
  if (kSanitized) GTEST_SKIP() << "sanitizers start threads of their own";
  if (!can_be_other_users())
    GTEST_SKIP() << "to be another user, of whom there are no processes yet, takes root, outside of user namespaces";
  if (run("command -v setpriv && command -v prlimit").exit_code != 0)
    GTEST_SKIP() << "setpriv or prlimit (util-linux) is not installed";
  int refusals = 0;
  for (int limit = 1; limit <= 30; ++limit) {
    const int user = 100000 + ::getpid() % 30000 * 30 + limit;  // has only these processes, including zombies
    const Outcome job = run(fmt::format(
        "LOCKSTEP_DEVICE=cpu timeout -k 5 60 setpriv --reuid {} --regid {} --clear-groups prlimit --nproc={} {}", user,
        user, limit, kJob));
    if (job.exit_code == 126 || job.exit_code == 127)
      GTEST_SKIP() << "another user may not run the programs: " << job.output;
    if (job.output.starts_with("setpriv: ")) GTEST_SKIP() << job.output;
    if (job.exit_code == 0) break;
    ++refusals;
    EXPECT_THAT(job.output, HasSubstr(fmt::format("at most {} processes and threads (RLIMIT_NPROC, ulimit -u)", limit)))
        << "limit " << limit;
  }
  EXPECT_GE(refusals, 5);
  EXPECT_LT(refusals, 30) << "it never worked";
}

TEST(LockrunLimits, AFullAddressSpaceIsNotTakenForTooManyProcesses) {
  if (kSanitized || is_emulated()) GTEST_SKIP() << "sanitizers and emulators need most of the address space";
  if (run("command -v prlimit").exit_code != 0) GTEST_SKIP() << "prlimit (util-linux) is not installed";
  // Enough for the program and its libraries, but not for a thread's stack of 4 GiB.
  const Outcome job = run(
      fmt::format("LOCKSTEP_DEVICE=cpu timeout -k 5 60 prlimit --as=3221225472 --stack=4294967296 {} steps=2 count=10",
                  COLLECTIVE_RANK));
  EXPECT_NE(job.exit_code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("address space is full: "));
  EXPECT_THAT(job.output, HasSubstr(" of 3072 MiB are in use (RLIMIT_AS, ulimit -v)"));
  EXPECT_THAT(job.output, Not(HasSubstr("RLIMIT_NPROC")));
}

TEST(LockrunLimits, AKillForWantOfMemoryIsCountedNotGuessed) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more memory than the group has";
  const MemoryGroup group(64 << 20);
  if (!group.is_usable()) GTEST_SKIP() << "this process may not make a control group with a limit of memory";
  const Outcome greedy =
      run(fmt::format("{} && exec timeout -k 5 60 {} --no-bind -n 1 tail /dev/zero", group.enter(), LOCKRUN));
  EXPECT_EQ(greedy.exit_code, 128 + SIGKILL) << greedy.output;
  EXPECT_THAT(greedy.output,
              HasSubstr("lockrun: the system's memory killer has ended 1 process of this control group in the last "));
  const Outcome killed =
      run(fmt::format("{} && exec timeout -k 5 60 {} --no-bind -n 1 sh -c 'kill -KILL $$'", group.enter(), LOCKRUN));
  EXPECT_EQ(killed.exit_code, 128 + SIGKILL) << killed.output;
  EXPECT_THAT(killed.output, HasSubstr("has ended no process of this control group in the last "));
  EXPECT_THAT(killed.output, HasSubstr("a process sent it, perhaps the rank itself"));
}

TEST(LockrunLimits, ThatCoresMayNotBeChosenIsSaidWithTheFlagThatDoesNot) {
  const std::string command = "LOCKSTEP_DEVICE=cpu timeout -k 5 60 " + kJob;
  const Outcome bound = run(command, SYS_sched_setaffinity);
  if (bound.exit_code == kNoFilter) GTEST_SKIP() << "this system has no seccomp filters";
  if (bound.exit_code == 0) GTEST_SKIP() << "there are too few cores to bind two ranks";
  EXPECT_THAT(bound.output, HasSubstr("sched_setaffinity: Operation not permitted: "));
  EXPECT_THAT(bound.output, HasSubstr("--no-bind"));
  const Outcome unbound = run(fmt::format("LOCKSTEP_DEVICE=cpu timeout -k 5 60 {} --no-bind -n 2 {} steps=2 count=10",
                                          LOCKRUN, COLLECTIVE_RANK),
                              SYS_sched_setaffinity);
  EXPECT_EQ(unbound.exit_code, 0) << unbound.output;
}

}  // namespace
}  // namespace lockstep::testing
