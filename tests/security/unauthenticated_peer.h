// A connection that follows no protocol.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>

#include "src/core/process/fd.h"
#include "tests/security/mutation.h"

namespace lockstep::testing {

class UnauthenticatedPeer {
 public:
  // Connects to loopback. Blocks only briefly: retries if the listener's queue is full.
  explicit UnauthenticatedPeer(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    fd_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd_.reset();
    // Closes by a reset: ten thousand connections must not use up the machine's ports.
    const linger at_once{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    const timeval patience{2, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  explicit operator bool() const { return static_cast<bool>(fd_); }

  // Returns false once the other side has closed.
  bool say(const Bytes& bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      done += static_cast<std::size_t>(sent);
    }
    return true;
  }
  // Sends byte by byte, each in its own segment as far as the kernel permits.
  bool drip(const Bytes& bytes) {
    for (const std::byte byte : bytes)
      if (!say({byte})) return false;
    return true;
  }
  // Returns false if the connection is closed, or silent for 2 s.
  template <typename T> bool hear(T& value) {
    auto* data = reinterpret_cast<char*>(&value);
    std::size_t done = 0;
    while (done < sizeof value) {
      const ssize_t got = ::recv(fd_.get(), data + done, sizeof value - done, 0);
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
    }
    return true;
  }
  bool is_closed_within(std::chrono::milliseconds time) {
    pollfd item{fd_.get(), POLLIN | POLLRDHUP, 0};
    char sink[4096];
    while (::poll(&item, 1, static_cast<int>(time.count())) > 0)
      if (::recv(fd_.get(), sink, sizeof sink, 0) <= 0) return true;
    return false;
  }

 private:
  Fd fd_;
};

}  // namespace lockstep::testing
