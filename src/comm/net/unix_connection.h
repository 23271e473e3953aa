// Messages and descriptors between two processes of one machine, over a sequenced-packet socket. Every call has a
// deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/net/socket.h"
#include "src/core/process/process_fd.h"

namespace lockstep {

// All functions throw Error that says what failed; `peer` is the other side's name in it.
struct UnixConnection {
  ProcessFd socket;
  std::string peer;

  // Sends the message and, if `fd` >= 0, the descriptor.
  void send(std::span<const std::byte> message, int fd, Deadline deadline) const;
  // Returns a message of at most `limit` bytes, and the descriptor that came with it, if any.
  std::vector<std::byte> receive(std::size_t limit, Fd* fd, Deadline deadline) const;
};

// Listens on a name in the abstract namespace of this machine (of its network namespace).
Fd listen_on_abstract_name(const std::string& name);
// Connects to a listener of this user; retries while its queue is full. The connection is non-blocking; UnixConnection
// waits where necessary.
Fd connect_to_abstract_name(const std::string& name, Deadline deadline);
// The next connection from a process of this user; others are closed. nullopt at the deadline.
std::optional<Fd> accept_own_user(int listener, Deadline deadline);

}  // namespace lockstep
