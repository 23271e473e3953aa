// A pipe for the stdout of a child, which the test reads when it likes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "src/core/process/fd.h"
#include "tests/faults/child.h"

namespace lockstep::testing {

class OutputPipe {
 public:
  OutputPipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_ = Fd(ends[0]);
    write_end_ = Fd(ends[1]);
  }
  int write_end() const { return write_end_.get(); }
  ChildOptions options() const {
    ChildOptions options;
    options.output_fd = write_end_.get();
    return options;
  }
  // Waits until the pipe is full; returns false if that takes too long.
  bool fills_up() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    pollfd polled{write_end_.get(), POLLOUT, 0};
    while (::poll(&polled, 1, 0) != 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      ::usleep(10'000);
    }
    return true;
  }
  bool read_byte() const {
    char byte;
    return ::read(read_end_.get(), &byte, 1) == 1;
  }
  // Reads until all writers have closed it.
  std::string read_all() {
    write_end_.reset();
    std::string text;
    std::vector<char> bytes(1 << 16);
    for (ssize_t got; (got = ::read(read_end_.get(), bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(got));
    return text;
  }
  void close() {
    write_end_.reset();
    read_end_.reset();
  }

 private:
  Fd read_end_, write_end_;
};

}  // namespace lockstep::testing
