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

// All throw Error that says what failed; `peer` names the other side in it.
struct UnixConnection {
  ProcessFd socket;
  std::string peer;

  // `fd` >= 0 is handed over with the message.
  void send(std::span<const std::byte> message, int fd, Deadline deadline) const;
  // A message of at most `limit` bytes; the descriptor that came with it, if any.
  std::vector<std::byte> receive(std::size_t limit, Fd* fd, Deadline deadline) const;
};

// Listens on a name of the abstract namespace, which belongs to this machine (to its network namespace).
Fd listen_on_abstract_name(const std::string& name);
// Of a listener of this user; tries again while its queue is full. The link does not block; UnixConnection waits where
// it must.
Fd connect_to_abstract_name(const std::string& name, Deadline deadline);
// The next connection of a process of this user; others are turned away. None at the deadline.
std::optional<Fd> accept_own_user(int listener, Deadline deadline);

}  // namespace lockstep
