// Runs ranks as processes, for faults that only processes have.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/ranks.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {

inline constexpr int kSkipExitCode = 77;

// Limit of the seconds from a rank's death until the others report it. The guarantee is two, if ranks get a core when
// they wake; here other tests run at the same time, and sanitizers are slow.
inline double death_is_told_within() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1) load = 0;
  return (kSanitized ? 10 : 2) * std::max(1.0, load / (2.0 * std::max(1U, std::thread::hardware_concurrency())));
}

// The end of a rank, in memory that parent and children share.
struct RankReport {
  char kind_text[32] = {};
  char message[1200] = {};
  std::int64_t stamped_ns = 0;  // at the fault, or when the error was thrown
  int signal = 0;               // that ended the process
  int exit_code = 0;

  std::string kind() const { return kind_text; }
  std::string text() const { return message; }
  void stamp() { stamped_ns = std::chrono::steady_clock::now().time_since_epoch().count(); }
  double seconds_after(const RankReport& other) const {
    return static_cast<double>(stamped_ns - other.stamped_ns) / 1e9;
  }
};

// Returns false if this process is not allowed to.
inline bool enter_own_network() { return unshare(CLONE_NEWNET) == 0; }

inline void note(RankReport& report, const Outcome& outcome) {
  if (outcome.kind == "none") return;
  std::strncpy(report.kind_text, outcome.kind.c_str(), sizeof report.kind_text - 1);
  std::strncpy(report.message, outcome.text.c_str(), sizeof report.message - 1);
}

// Waits for all children. A stopped one is killed once the others have ended; hanging ranks are killed after two
// minutes, a limit that suits sanitizers.
inline void reap(const std::vector<pid_t>& children, RankReport* reports) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::vector<bool> ended(children.size()), stopped(children.size());
  while (std::count(ended.begin(), ended.end(), false) > 0) {
    const bool late = std::chrono::steady_clock::now() > deadline;
    const bool only_stopped_left =
        std::count(ended.begin(), ended.end(), false) == std::count(stopped.begin(), stopped.end(), true);
    EXPECT_FALSE(late) << "ranks hang";
    for (std::size_t r = 0; r < children.size(); ++r) {
      if (!ended[r] && (late || only_stopped_left)) kill(children[r], SIGKILL);
      int status = 0;
      if (ended[r] || waitpid(children[r], &status, late || only_stopped_left ? 0 : WNOHANG | WUNTRACED) != children[r])
        continue;
      stopped[r] = WIFSTOPPED(status);
      ended[r] = !stopped[r];
      reports[r].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      reports[r].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    }
    usleep(2000);
  }
}

// Forks the ranks and waits for them. `prepare` runs first in each; if it returns false, the rank exits with
// kSkipExitCode.
inline std::vector<RankReport> run_processes(
    const GroupSpec& spec, const std::function<void(Rank&, RankReport&)>& body,
    const std::function<bool(int rank)>& prepare = [](int) { return true; }) {
  const Meeting rendezvous(spec);
  const auto n = static_cast<std::size_t>(spec.ranks);
  void* memory = mmap(nullptr, n * sizeof(RankReport), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("mmap");
  auto* shared = static_cast<RankReport*>(memory);
  std::vector<pid_t> children(n);
  std::fflush(nullptr);  // otherwise the children print buffered text again
  for (std::size_t r = 0; r < n; ++r) {
    RankReport& report = *new (&shared[r]) RankReport;
    children[r] = fork();
    if (children[r] != 0) continue;
    if (!prepare(static_cast<int>(r))) _exit(kSkipExitCode);
    note(report, outcome_of([&] {
           Rank rank = rendezvous.join(static_cast<int>(r));
           const Outcome outcome = outcome_of([&] { body(rank, report); });
           report.stamp();
           note(report, outcome);
         }));
    _exit(0);
  }
  reap(children, shared);
  std::vector<RankReport> reports(shared, shared + n);
  munmap(memory, n * sizeof(RankReport));
  return reports;
}

}  // namespace lockstep::testing
