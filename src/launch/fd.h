// Ownership of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep::launch {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end, write_end;
};

// Both ends close on exec. Throws Error.
Pipe make_pipe();

// write(2) until all of it is out; false on an error (errno says which).
bool write_all(int fd, const void* data, std::size_t bytes);

}  // namespace lockstep::launch
