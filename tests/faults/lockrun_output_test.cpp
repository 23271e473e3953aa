// The output of a job, byte for byte, to files, pipes and a terminal.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/faults/lockrun.h"
#include "tests/faults/output_pipe.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::size_t count(const std::string& text, const std::string& wanted) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(wanted, at)) != std::string::npos; at += wanted.size()) ++found;
  return found;
}

TEST(LockrunOutput, WholeLinesWithTheRankAndStreamsApart) {
  Child job(lockrun(2, {"part:one +sleep:100+out:line+err:trouble+part:rest"}));
  EXPECT_EQ(job.wait(), 0);
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(count(job.output(), "[" + rank + "] one line\n"), 1u) << job.output();
    EXPECT_EQ(count(job.output(), "[" + rank + "] rest\n"), 1u) << job.output();
    EXPECT_EQ(count(job.errors(), "[" + rank + "] trouble\n"), 1u) << job.errors();
  }
  EXPECT_EQ(count(job.output(), "\n"), 4u);
  EXPECT_EQ(count(job.errors(), "\n"), 2u);
}

TEST(LockrunOutput, NoPrefixChangesNoByte) {
  std::string expected;
  for (int i = 0; i < 256; ++i) expected += static_cast<char>(i);
  expected += "\n\n" + std::string(200'000, 'x');
  Child job(lockrun(2, {"bytes", "exit:0"}, {"--no-prefix"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_TRUE(job.output() == expected) << job.output().size() << " bytes";
}

TEST(LockrunOutput, LongLinesStayWhole) {
  Child job(lockrun(2, {"bytes"}));
  EXPECT_EQ(job.wait(), 0);
  for (const std::string rank : {"0", "1"})
    EXPECT_EQ(count(job.output(), "[" + rank + "] " + std::string(200'000, 'x') + "\n"), 1u);
}

// More than lockrun buffers; the rest stays in the rank's pipe, which must be read after the rank has ended.
TEST(LockrunOutput, ASlowReaderGetsEveryLine) {
  constexpr int kLines = 11'400;
  for (const std::string stream : {"--no-terminal", "--no-prefix"}) {
    OutputPipe output;
    Child job(lockrun(1, {"lines:" + std::to_string(kLines)}, {"--no-prefix", stream}), output.options());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const std::string text = output.read_all();
    EXPECT_EQ(job.wait(), 0);
    EXPECT_EQ(text.size(), kLines * 100u) << stream;
  }
}

TEST(LockrunOutput, OutputAndErrorsInOneFileAreWholeLines) {
  ChildOptions options;
  options.one_file = true;
  Child job(lockrun(2, {"both:150"}, {"--gpus", "none"}), options);
  EXPECT_EQ(job.wait(), 0);
  std::istringstream lines(job.output());
  int whole = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("lockrun:", 0) == 0) continue;
    EXPECT_THAT(line.substr(4), ::testing::AnyOf(std::string(900, 'x'), std::string(900, 'y')));
    ++whole;
  }
  EXPECT_EQ(whole, 600);
}

// To a terminal the C library writes line by line, to a pipe because run_main requests it.
TEST(LockrunOutput, ALineComesAtOnceWithoutAFlush) {
  const std::string seen = ::testing::TempDir() + "seen-" + std::to_string(::getpid());
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--no-terminal"}}) {
    Child job(lockrun(2, {"out:hello+await:" + seen}, flags));
    EXPECT_TRUE(job.wait_for_output("[0] hello\n"));
    EXPECT_TRUE(job.wait_for_output("[1] hello\n"));
    std::ofstream{seen};
    EXPECT_EQ(job.wait(), 0);
    std::remove(seen.c_str());
  }
}

TEST(LockrunOutput, AForeignProgramsStdoutIsATerminal) {
  for (const std::string flag : {"--no-bind", "--no-terminal"}) {
    Child job({LOCKRUN, "-n", "1", flag, "sh", "-c", "test -t 1 && echo \"a terminal, $TERM\" || echo a pipe"});
    EXPECT_EQ(job.wait(), 0);
    EXPECT_EQ(job.output(), flag == "--no-bind" ? "[0] a terminal, dumb\n" : "[0] a pipe\n");
  }
}

TEST(LockrunOutput, ALineIsNotLostWithItsRank) {
  Child job(lockrun(1, {"out:reading file 17+segv"}));
  EXPECT_EQ(job.wait(), 128 + SIGSEGV);
  EXPECT_THAT(job.output(), HasSubstr("[0] reading file 17\n"));
}

TEST(LockrunOutput, AProcessThatKeepsTheStreamsOpenIsNamed) {
  Child job(lockrun(1, {"leave+out:mine"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.output(), HasSubstr("[0] mine\n"));
  for (const char* stream : {"stdout", "stderr"})
    EXPECT_THAT(job.errors(), HasSubstr(std::string(" (rank_program), which has left its process group, keeps its ") +
                                        stream + " open"));
}

// The time between two lines is not guaranteed: of many tries, one is fast enough.
TEST(LockrunOutput, EqualLinesFold) {
  std::string seen;
  for (int i = 0; i < 50 && count(seen, "[0-1] same\n") == 0; ++i) {
    Child job({LOCKRUN, "-n", "2", "--gpus", "none", RANK_PROGRAM, "err:same"});
    EXPECT_EQ(job.wait(), 0);
    seen += job.errors();
  }
  EXPECT_EQ(count(seen, "[0-1] same\n"), 1u) << seen;
}

// Which lines fold depends on time; but each rank's lines must all arrive, in order.
TEST(LockrunOutput, AFloodOfFoldedLinesIsCompleteAndInOrder) {
  constexpr int kRanks = 4, kLines = 30'000;
  Child job({LOCKRUN, "-n", std::to_string(kRanks), "seq", "1", std::to_string(kLines)});
  EXPECT_EQ(job.wait(std::chrono::seconds(60)), 0);
  std::vector<int> last(kRanks);
  std::istringstream all(job.output());
  for (std::string line; std::getline(all, line);) {
    const std::size_t end = line.find("] ");
    ASSERT_NE(end, std::string::npos) << line;
    std::istringstream ranges(line.substr(1, end - 1));
    for (std::string range; std::getline(ranges, range, ',');)
      for (int rank = std::stoi(range); rank <= std::stoi(range.substr(range.find('-') + 1)); ++rank)
        ASSERT_EQ(std::stoi(line.substr(end + 2)), ++last.at(static_cast<std::size_t>(rank))) << line;
  }
  EXPECT_EQ(last, std::vector<int>(kRanks, kLines));
}

TEST(LockrunOutput, RankZeroReadsOurInput) {
  ChildOptions options;
  options.input = "first\nsecond\n";
  Child job(lockrun(2, {"cat+out:end"}), options);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of("0", job.output()), "[0] read first\n[0] read second\n[0] end\n");
  EXPECT_THAT(job.output(), HasSubstr("[1] end\n"));
  EXPECT_THAT(job.output(), Not(HasSubstr("[1] read")));
}

TEST(LockrunOutput, AReaderWhoLeavesEndsTheJob) {
  OutputPipe output;
  Child job(lockrun(2, {"flood"}), output.options());
  ASSERT_TRUE(output.read_byte());
  output.close();
  EXPECT_EQ(job.wait(), 128 + SIGPIPE);
  EXPECT_TRUE(job.nothing_left());
}

bool become(const Child& job, std::size_t processes) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    if (job.alive().size() == processes) return true;
    ::usleep(10'000);
  }
  return false;
}

TEST(LockrunOutput, AReaderWhoSleepsKeepsNobodyFromNoticingAFailure) {
  OutputPipe output;
  Child job(lockrun(2, {"flood", "sleep:500+exit:3"}), output.options());
  EXPECT_TRUE(become(job, 4)) << "launcher, guard, two ranks";
  EXPECT_TRUE(become(job, 2)) << "nobody reads: launcher and guard remain, the ranks must not";
  output.read_all();
  EXPECT_EQ(job.wait(), 3);
}

struct Terminal {
  int ours = -1, theirs = -1;
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    EXPECT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
    ::fcntl(ours, F_SETFD, FD_CLOEXEC);
    ::fcntl(theirs, F_SETFD, FD_CLOEXEC);
  }
  ~Terminal() { ::close(ours); }
  // Reads until all writers have closed the other side, or for five seconds of silence.
  std::string read_all() {
    ::close(theirs);
    std::string text;
    char bytes[4096];
    pollfd polled{ours, POLLIN, 0};
    while (::poll(&polled, 1, 5000) > 0) {
      const ssize_t got = ::read(ours, bytes, sizeof(bytes));
      if (got <= 0) break;
      text.append(bytes, static_cast<std::size_t>(got));
    }
    return text;
  }
};

TEST(LockrunOutput, ATerminalWhoseReaderSleepsKeepsNobodyFromNoticingAFailure) {
  Terminal terminal(80);
  ChildOptions options;
  options.output_fd = terminal.theirs;
  Child job(lockrun(2, {"flood", "sleep:500+exit:3"}), options);
  EXPECT_TRUE(become(job, 4)) << "launcher, guard, two ranks";
  EXPECT_TRUE(become(job, 2)) << "nobody reads: launcher and guard remain, the ranks must not";
  terminal.read_all();
  EXPECT_EQ(job.wait(), 3);
}

// A rank's stdout is a terminal, which the outer lockrun does not read while its own output is not read.
TEST(LockrunOutput, ALockrunThatIsARankNoticesAFailureThoughNobodyReads) {
  OutputPipe output;
  std::vector<std::string> command = {LOCKRUN, "-n", "1"};
  for (const std::string& word : lockrun(2, {"flood", "sleep:500+exit:3"})) command.push_back(word);
  Child job(command, output.options());
  EXPECT_TRUE(become(job, 6)) << "two launchers, two guards, two ranks";
  EXPECT_TRUE(become(job, 4)) << "nobody reads: launchers and guards remain, the ranks must not";
  output.read_all();
  EXPECT_EQ(job.wait(), 3);
}

TEST(LockrunOutput, TheSecondSignalEndsALockrunThatNobodyReads) {
  OutputPipe output;
  Child job(lockrun(2, {"flood"}), output.options());
  EXPECT_TRUE(become(job, 4)) << "launcher, guard, two ranks";
  ASSERT_TRUE(output.read_byte()) << "the flood has begun";
  ASSERT_TRUE(output.fills_up());
  job.signal(SIGTERM);
  EXPECT_TRUE(become(job, 2)) << "the first one ends the ranks";
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: SIGTERM: ended all ranks\n"));
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: ended before all output of the ranks was read: "));
  EXPECT_TRUE(job.nothing_left());
}

// Two signals in a row must not lose output that a reader accepts.
TEST(LockrunOutput, TheSecondSignalLosesNothingWhereSomebodyReads) {
  Child job({LOCKRUN, "--no-fold", "-n", "1", "sh", "-c",
             "trap '' TERM; echo up; sleep 0.5; echo more; while :; do sleep 1; done"});
  ASSERT_TRUE(job.wait_for_output("up"));
  job.signal(SIGTERM);
  ASSERT_TRUE(job.wait_for_output("more"));
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_THAT(job.errors(), HasSubstr("lockrun: SIGTERM: ended all ranks\n"));
  EXPECT_THAT(job.errors(), Not(HasSubstr("lost")));
}

// Whether a write fails while ranks run or afterwards differs from run to run.
TEST(LockrunOutput, OutputThatCannotBeWrittenIsAFailure) {
  for (const std::string flag : {"--no-bind", "--no-fold", "--no-prefix"})
    for (int i = 0; i < 5; ++i) {
      const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
      ASSERT_GE(full, 0);
      ChildOptions options;
      options.output_fd = full;
      Child job({LOCKRUN, "-n", "2", flag, "sh", "-c", "echo hi$LOCAL_RANK"}, options);
      ::close(full);
      EXPECT_EQ(job.wait(), 1) << flag;
      EXPECT_EQ(count(job.errors(), "lockrun: cannot write the ranks' output: No space left on device\n"), 1u)
          << flag << job.errors();
    }
}

TEST(LockrunOutput, AReaderWhoLeavesBeforeTheLastWordIsAsOneWhoLeavesEarlier) {
  for (int i = 0; i < 3; ++i) {
    OutputPipe output;
    Child job({LOCKRUN, "-n", "2", "sh", "-c", "echo hi$LOCAL_RANK"}, output.options());
    output.close();
    EXPECT_EQ(job.wait(), 128 + SIGPIPE) << job.errors();
  }
}

TEST(LockrunOutput, OnATerminalRankZeroRedrawsItsLine) {
  Terminal terminal(97);
  ChildOptions options;
  options.output_fd = terminal.theirs;
  const std::string drawn = ::testing::TempDir() + "drawn-" + std::to_string(::getpid()), said = drawn + "-said";
  const std::string act =
      "env:LOCKSTEP_TERMINAL_WIDTH+redraw:step 1+touch:" + drawn + "+await:" + said + "+redraw:step 2+out:";
  Child job(lockrun(2, {act, "await:" + drawn + "+sleep:100+out:hello+flush+sleep:300+touch:" + said}), options);
  const std::string seen = terminal.read_all();
  EXPECT_EQ(job.wait(), 0);
  std::remove(drawn.c_str());
  std::remove(said.c_str());
  EXPECT_THAT(seen, StartsWith("[0] LOCKSTEP_TERMINAL_WIDTH=97\r\nstep 1"));
  EXPECT_THAT(seen, HasSubstr("\r\x1b[K[1] hello\r\nstep 1"));
  EXPECT_THAT(seen, HasSubstr("\r\x1b[Kstep 2"));
  EXPECT_EQ(count(seen, "[0]"), 1u) << seen;
}

TEST(LockrunOutput, ALogIsNotRedrawn) {
  ChildOptions options;
  options.environment["LOCKSTEP_TERMINAL_WIDTH"] = "80";  // from an outer launcher
  Child job(lockrun(1, {"env:LOCKSTEP_TERMINAL_WIDTH+redraw:step 1+out:"}), options);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "[0] LOCKSTEP_TERMINAL_WIDTH=(unset)\n[0] \rstep 1\n");
}

}  // namespace
}  // namespace lockstep::testing
