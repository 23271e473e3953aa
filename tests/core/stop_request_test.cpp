// Signals that ask a process to end early, in processes of their own.
#include "src/core/process/stop_request.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace lockstep {
namespace {

// The exit code of a process that does this, or 128 + signal.
int end_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGUSR2, SIG_DFL);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(StopRequest, SignalsAreRememberedOnceTheProgramAsks) {
  for (const int signal : {SIGTERM, SIGUSR2}) {
    EXPECT_EQ(end_of([signal] { return ::raise(signal); }), 128 + signal) << "nobody asks";
    EXPECT_EQ(end_of([signal] {
                remember_stop_signals();
                if (is_stop_requested()) return 1;
                ::raise(signal);
                return is_stop_requested() ? 85 : 2;
              }),
              85);
  }
}

TEST(StopRequest, OnceAPeerIsLostSigtermEndsTheProcess) {
  EXPECT_EQ(end_of([] {
              remember_stop_signals();
              end_at_stop_signals();
              ::raise(SIGTERM);
              return 1;
            }),
            128 + SIGTERM);
  EXPECT_EQ(end_of([] {
              constexpr auto kWriteRecordAndEnd = [](int) { ::_exit(7); };
              std::signal(SIGTERM, kWriteRecordAndEnd);
              note_end_handler(kWriteRecordAndEnd);
              remember_stop_signals();
              ::raise(SIGTERM);
              if (!is_stop_requested()) return 1;
              end_at_stop_signals();
              ::raise(SIGTERM);
              return 2;
            }),
            7)
      << "the handler before has its turn";
}

TEST(StopRequest, HandlersOfTheProgramStay) {
  for (const int signal : {SIGTERM, SIGUSR2})
    EXPECT_EQ(end_of([signal] {
                std::signal(signal, [](int) { ::_exit(9); });
                remember_stop_signals();
                ::raise(signal);
                return 1;
              }),
              9);
  EXPECT_EQ(end_of([] {
              std::signal(SIGTERM, SIG_IGN);
              remember_stop_signals();
              ::raise(SIGTERM);
              return is_stop_requested() ? 1 : 5;
            }),
            5);
}

}  // namespace
}  // namespace lockstep
