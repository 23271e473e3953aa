#include "src/comm/net/unix_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/core/error.h"
#include "src/comm/net/socket.h"

namespace lockstep {

namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int));
constexpr auto kFullQueuePause = std::chrono::milliseconds(2);

std::string errno_text() { return std::strerror(errno); }

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(name.size() + 1 <= sizeof address.sun_path, "abstract socket name '{}' is too long", name);
  std::memcpy(address.sun_path + 1, name.data(),
              name.size());  // a leading zero byte: the name is not in the file system
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool is_own_user(int link) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// Takes ownership of every descriptor that came with the message: the buffer for one has room for two because of its
// padding.
std::vector<Fd> take_descriptors(msghdr& header) {
  std::vector<Fd> received;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= item->cmsg_len; at += sizeof(int)) {
      int number;
      std::memcpy(&number, CMSG_DATA(item) + at, sizeof number);
      received.emplace_back(number);
    }
  }
  return received;
}

}  // namespace

void UnixConnection::send(std::span<const std::byte> message, int fd, Deadline deadline) const {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  }
  while (sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
    // Too many descriptors under way: wait until the receivers have read some.
    const bool many_in_flight = errno == ETOOMANYREFS;
    if (!full && !many_in_flight) throw Error("cannot send to {}: {}", peer, errno_text());
    if (many_in_flight) poll(nullptr, 0, 1);
    const bool in_time =
        many_in_flight ? std::chrono::steady_clock::now() < deadline : wait_for(socket.get(), POLLOUT, deadline);
    if (!in_time) throw Error("{} did not receive its messages in time", peer);
  }
}

std::vector<std::byte> UnixConnection::receive(std::size_t limit, Fd* fd, Deadline deadline) const {
  if (!wait_for(socket.get(), POLLIN, deadline)) throw Error("{} did not answer in time", peer);
  std::vector<std::byte> message(limit);
  iovec part{message.data(), message.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t length;
  do length = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  while (length < 0 && errno == EINTR);
  if (length < 0) throw Error("cannot receive from {}: {}", peer, errno_text());
  std::vector<Fd> received = take_descriptors(header);
  if (length == 0) throw Error("{} has closed the connection", peer);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || received.size() > 1)
    throw Error("{} sent a message that does not fit", peer);
  if (fd != nullptr) *fd = received.empty() ? Fd() : std::move(received[0]);
  message.resize(static_cast<std::size_t>(length));
  return message;
}

Fd listen_on_abstract_name(const std::string& name) {
  Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length;
  const sockaddr_un address = abstract_address(name, length);
  if (!listener || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0)
    throw Error("cannot listen on an abstract socket: {}", errno_text());
  return listener;
}

// A blocking connect() would wait indefinitely for room in the listener's queue.
Fd connect_to_abstract_name(const std::string& name, Deadline deadline) {
  Fd link(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!link) throw Error("cannot make a socket: {}", errno_text());
  socklen_t length;
  const sockaddr_un address = abstract_address(name, length);
  while (connect(link.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN)
      throw Error("its abstract socket cannot be reached ({}): not the same machine, or another network namespace",
                  errno_text());
    if (std::chrono::steady_clock::now() >= deadline)
      throw Error("its abstract socket accepts no connections: its queue is full");
    std::this_thread::sleep_for(kFullQueuePause);
  }
  if (!is_own_user(link.get())) throw Error("its abstract socket belongs to another user: refused");
  return link;
}

std::optional<Fd> accept_own_user(int listener, Deadline deadline) {
  while (wait_for(listener, POLLIN, deadline)) {
    Fd link(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (link && is_own_user(link.get())) return link;  // or it has been closed again
  }
  return std::nullopt;
}

}  // namespace lockstep
