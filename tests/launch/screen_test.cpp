#include "src/launch/screen.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "src/launch/pipe.h"

namespace lockstep::launch {
namespace {

// Writes the queue out and returns what a reader gets; small texts only, they fit the pipe.
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
  for (const std::size_t bytes : {4000, 4000}) {  // two lines of 2000 fit into PIPE_BUF
    queue.write_some();
    EXPECT_EQ(::read(pipe.read_end.get(), text.data(), text.size()), static_cast<ssize_t>(bytes));
  }
  EXPECT_TRUE(queue.empty());
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
