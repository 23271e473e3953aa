#include "lockstep/train/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/core/error.h"
#include "tests/support/pattern.h"

namespace lockstep::train {
namespace {

// Runs `body` with a stream and returns the written text.
template <typename Body> std::string captured(Body&& body) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  body(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Progress, ALogHasAPlainLineEveryNSteps) {
  const std::string log = captured([](std::FILE* out) {
    Progress progress({.total_steps = 50, .log_every = 20, .out = out});
    for (int step = 1; step <= 50; ++step) progress.step(step, 1.2341f, 128);
    progress.message("done");
  });
  EXPECT_TRUE(testing::matches(log,
                               "step 20 loss 1\\.234 [0-9]+ images/s\nstep 40 loss 1\\.234 [0-9]+ images/s\n"
                               "step 50 loss 1\\.234 [0-9]+ images/s\ndone\n"))
      << log;
}

// An undefined tensor cannot be read.
TEST(Progress, ATensorIsReadOnlyWhereALineIsDue) {
  const Tensor loss = Tensor::full({}, 1.2341f), unread;
  const std::string log = captured([&](std::FILE* out) {
    Progress progress({.total_steps = 50, .log_every = 20, .out = out});
    for (int step = 1; step <= 50; ++step)
      progress.step(step, step == 1 || step % 20 == 0 || step == 50 ? loss : unread, 128);
    EXPECT_THROW(progress.step(60, unread, 128), InvalidArgument);
    Progress silent({.enabled = false, .total_steps = 1, .out = out});
    silent.step(1, unread, 128);
  });
  EXPECT_TRUE(testing::matches(log,
                               "step 20 loss 1\\.234 [0-9]+ images/s\nstep 40 loss 1\\.234 [0-9]+ images/s\n"
                               "step 50 loss 1\\.234 [0-9]+ images/s\n"))
      << log;
}

TEST(Progress, ATerminalHasOneLineWithinItsWidth) {
  const std::string text = captured([](std::FILE* out) {
    Progress progress({.terminal_width = 60, .total_steps = 4, .steps_per_epoch = 2, .out = out});
    for (int step = 1; step <= 4; ++step) progress.step(step, 0.5f, 10);
  });
  EXPECT_EQ(text.find("\repoch 0  step 1/4  loss 0.500"), 0u) << text;
  EXPECT_NE(text.find("epoch 1  step 4/4"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << "only at the end";
  const std::string narrow = captured([](std::FILE* out) {
    Progress progress({.terminal_width = 10, .total_steps = 1, .out = out});
    progress.step(1, 0.5f, 10);
  });
  EXPECT_EQ(narrow, "\rstep 1/1 \x1b[K\n");
}

TEST(Progress, KerasLinesCountTheStepsOfTheEpoch) {
  const auto lines = [](std::optional<int> width) {
    return captured([&](std::FILE* out) {
      Progress progress({.terminal_width = width,
                         .total_steps = 4,
                         .steps_per_epoch = 2,
                         .log_every = 1,
                         .out = out,
                         .samples = "samples",
                         .keras = true});
      for (int step = 1; step <= 4; ++step) progress.step(step, 0.5F, 10);
    });
  };
  EXPECT_TRUE(testing::matches(lines({}),
                               "1/2 - loss: 0\\.5000 - [0-9]+ samples/s\n"
                               "1/2 - loss: 0\\.5000 - [0-9]+ samples/s\n"))
      << lines({});
  const std::string terminal = lines(100);
  EXPECT_EQ(terminal.find("\r1/2 [==============>...............] - ETA: 0:00 - loss: 0.5000 - "), 0U) << terminal;
  EXPECT_NE(terminal.find("\r2/2 [==============================] - ETA: 0:00 - loss: 0.5000 - "), std::string::npos);
}

TEST(Progress, OtherRanksPrintNothing) {
  EXPECT_EQ(captured([](std::FILE* out) {
              Progress progress({.enabled = false, .total_steps = 1, .out = out});
              progress.message("hidden");
              progress.step(1, 0.5f, 10);
            }),
            "");
}

// Returns terminal_width(), or 0, in a process whose stdout is a terminal of 97 columns.
int width_in_a_terminal(const std::map<std::string, std::string>& environment) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return -1;
  const int users_end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  const winsize size{.ws_row = 30, .ws_col = 97, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t child = ::fork();
  if (child == 0) {
    ::ioctl(users_end, TIOCSWINSZ, &size);
    ::dup2(users_end, STDOUT_FILENO);
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID", "PMIX_RANK", "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS", "SLURM_PROCID", "LOCKSTEP_TERMINAL_WIDTH"})
      ::unsetenv(name);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::_exit(terminal_width().value_or(0));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(users_end);
  ::close(terminal);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Progress, OnlyAUsersOwnTerminalIsRedrawn) {
  if (width_in_a_terminal({}) < 0) GTEST_SKIP() << "no pseudo terminal is available";
  EXPECT_EQ(width_in_a_terminal({}), 97);
  EXPECT_EQ(width_in_a_terminal({{"OMPI_COMM_WORLD_RANK", "0"}}), 0) << "under Open MPI the output may go to a file";
  EXPECT_EQ(width_in_a_terminal({{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}), 0);
  EXPECT_EQ(width_in_a_terminal({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}), 0);
  EXPECT_EQ(width_in_a_terminal({{"RANK", "0"}, {"LOCKSTEP_TERMINAL_WIDTH", "80"}}), 80) << "set by lockrun";
}

TEST(Progress, AFullDiskIsAnError) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"), std::fclose);
  if (!full) GTEST_SKIP() << "there is no /dev/full";
  Progress log({.total_steps = 1, .out = full.get()}),
      terminal({.terminal_width = 60, .total_steps = 1, .out = full.get()});
  EXPECT_THROW(log.message("hello"), FileError);
  EXPECT_THROW(log.step(1, 0.5f, 10), FileError);
  EXPECT_THROW(terminal.step(1, 0.5f, 10), FileError);
  Progress silent({.enabled = false, .out = full.get()});
  EXPECT_NO_THROW(silent.message("other ranks print nothing"));
}

}  // namespace
}  // namespace lockstep::train
