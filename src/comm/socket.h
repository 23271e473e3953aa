// Sockets with deadlines: what the store and the rings share. Every file descriptor closes on exec.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "lockstep/comm/store.h"

namespace lockstep {

using Deadline = std::chrono::steady_clock::time_point;

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Milliseconds until the deadline for poll(): never negative, rounded up.
int remaining_ms(Deadline deadline);

// A listening TCP socket. Throws RendezvousError: the address cannot be bound (in use: by port and what to do).
Fd listen_tcp(const std::string& host, std::uint16_t port);
Endpoint local_endpoint(int fd);
Endpoint peer_endpoint(int fd);
bool is_loopback(const std::string& host);  // a numeric address or "localhost"

// Connects to a name or a numeric address, with TCP_NODELAY; an empty Fd when this try failed, with the reason in `why`.
Fd try_connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline, std::string& why);

enum class IoResult { kDone, kClosed, kTimeout };
// The whole range, or not: on a socket of either mode, poll-driven. kClosed: the peer went away (or reset).
IoResult send_all(int fd, std::span<const std::byte> data, Deadline deadline);
IoResult receive_all(int fd, std::span<std::byte> data, Deadline deadline);

}  // namespace lockstep
