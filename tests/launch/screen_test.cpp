#include "src/launch/output/screen.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "src/launch/supervise/pipe.h"

namespace lockstep::launch {
namespace {

// Writes the queue and returns the reader's text; for small texts, which fit into the pipe.
std::string flushed(OutputQueue& queue, const Pipe& pipe) {
  while (!queue.empty()) queue.write_some();
  std::string text(1 << 16, '\0');
  ::fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  const ssize_t got = ::read(pipe.read_end.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

TEST(Screen, OutputAndErrorsStayApart) {
  const Pipe output = make_pipe(), errors = make_pipe();
  Screen screen(output.write_end.get(), errors.write_end.get(), false);
  screen.show({Piece::Kind::kLine, "[0] out\n"}, false);
  screen.show({Piece::Kind::kLine, "[0] err\n"}, true);
  EXPECT_EQ(flushed(screen.output(), output), "[0] out\n");
  EXPECT_EQ(flushed(screen.errors(), errors), "[0] err\n");
}

TEST(Screen, LinesGoAboveTheStatus) {
  const Pipe output = make_pipe();
  Screen screen(output.write_end.get(), -1, true);
  screen.show({Piece::Kind::kStatus, "step 1"}, false);
  screen.show({Piece::Kind::kLine, "[1] warning\n"}, true);
  EXPECT_EQ(flushed(screen.output(), output), "step 1\r\x1b[K[1] warning\nstep 1");
  screen.show({Piece::Kind::kStatus, "step 2"}, false);
  screen.show({Piece::Kind::kStatusEnd, "step 9"}, false);
  screen.show({Piece::Kind::kLine, "[0] done\n"}, false);
  EXPECT_EQ(flushed(screen.output(), output), "\r\x1b[Kstep 2\r\x1b[Kstep 9\n[0] done\n");
}

TEST(OutputQueue, IsFullUntilSomebodyReads) {
  const Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write_end.get());
  EXPECT_FALSE(queue.full());
  queue.append(std::string(2 << 20, 'x'));
  EXPECT_TRUE(queue.full());
  std::size_t read = 0;
  std::string text(PIPE_BUF, '\0');
  while (!queue.empty()) {
    queue.write_some();
    const ssize_t got = ::read(pipe.read_end.get(), text.data(), text.size());
    ASSERT_GT(got, 0);
    read += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(read, std::size_t{2 << 20});
}

TEST(OutputQueue, APieceEndsWithALine) {
  const Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write_end.get());
  const std::string line = std::string(1999, 'x') + "\n";
  for (int i = 0; i < 4; ++i) queue.append(line);
  std::string text(1 << 16, '\0');
  for (const std::size_t bytes : {4000, 4000}) {  // two lines of 2000 bytes fit into PIPE_BUF
    queue.write_some();
    EXPECT_EQ(::read(pipe.read_end.get(), text.data(), text.size()), static_cast<ssize_t>(bytes));
  }
  EXPECT_TRUE(queue.empty());
}

struct Terminal {
  Fd ours, theirs;
  Terminal() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::openpty(&fds[0], &fds[1], nullptr, nullptr, nullptr), 0);
    ours = Fd(fds[0]);
    theirs = Fd(fds[1]);
    termios modes{};
    EXPECT_EQ(::tcgetattr(theirs.get(), &modes), 0);
    modes.c_oflag |= OPOST | XTABS;  // a tab becomes eight bytes
    EXPECT_EQ(::tcsetattr(theirs.get(), TCSANOW, &modes), 0);
  }
};

// Writes as long as poll() reports room. Returns true when there is none; a write that blocks would never return.
bool becomes_stuck(OutputQueue& queue) {
  queue.append(std::string(1 << 20, '\t'));
  pollfd polled{queue.fd(), POLLOUT, 0};
  while (!queue.empty() && ::poll(&polled, 1, 0) > 0) queue.write_some();
  return !queue.empty() && queue.error() == 0;
}

TEST(OutputQueue, NoWriteWaitsForATerminalsOrPipesReader) {
  const Terminal terminal;
  const Pipe pipe = make_pipe();
  for (const int fd : {terminal.theirs.get(), pipe.write_end.get()}) {
    OutputQueue queue(fd);
    ASSERT_NE(::fcntl(queue.fd(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0) << "others have this descriptor, too";
    EXPECT_TRUE(becomes_stuck(queue));
  }
}

TEST(OutputQueue, NoWriteWaitsForASocketsReader) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd ours(ends[0]), theirs(ends[1]);
  OutputQueue queue(theirs.get());
  EXPECT_TRUE(becomes_stuck(queue));
  queue.write_some();  // as if another writer had come first
  EXPECT_EQ(queue.error(), 0);
}

TEST(OutputQueue, ATerminalThatCannotBeOpenedAgainGetsWhatSurelyFits) {
  const Terminal terminal;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  OutputQueue queue(terminal.theirs.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(queue.fd(), terminal.theirs.get());
  EXPECT_TRUE(becomes_stuck(queue));
  char bytes[4096];
  for (pollfd polled{queue.fd(), POLLOUT, 0}; ::poll(&polled, 1, 0) == 0;) {
    ASSERT_GT(::read(terminal.ours.get(), bytes, sizeof(bytes)), 0);
    EXPECT_EQ(bytes[0], ' ') << "of a tab";
  }
  const std::size_t waiting = queue.waiting();
  queue.write_some();
  EXPECT_LT(queue.waiting(), waiting) << "goes on once somebody has read";
}

// Opening it would make a new terminal.
TEST(OutputQueue, TheOtherSideOfATerminalIsWrittenToItself) {
  const Terminal terminal;
  OutputQueue queue(terminal.ours.get());
  EXPECT_EQ(queue.fd(), terminal.ours.get());
}

TEST(Screen, OneFileIsSeenUnderTwoDescriptors) {
  const Pipe first = make_pipe(), second = make_pipe();
  const Fd again(::dup(first.write_end.get()));
  EXPECT_TRUE(is_one_file(first.write_end.get(), again.get()));
  EXPECT_FALSE(is_one_file(first.write_end.get(), second.write_end.get()));
  EXPECT_FALSE(is_one_file(first.write_end.get(), -1));
}

TEST(OutputQueue, AReaderWhoHasLeftIsAnErrorThatStays) {
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write_end.get());
  pipe.read_end.reset();
  queue.append("text");
  queue.write_some();
  EXPECT_EQ(queue.error(), EPIPE);
  queue.append("more");
  EXPECT_TRUE(queue.empty());
  ::sigaction(SIGPIPE, &before, nullptr);
}

}  // namespace
}  // namespace lockstep::launch
