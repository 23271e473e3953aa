#include "src/comm/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "lockstep/core/error.h"
#include "src/comm/net/resolve.h"

namespace lockstep {

namespace {

constexpr auto kNameToListenOn = std::chrono::seconds(30);
// An absent machine never answers: then try the next address.
constexpr auto kOneAddress = std::chrono::seconds(5);

Endpoint endpoint_of(const sockaddr_storage& address) {
  const bool is_v6 = address.ss_family == AF_INET6;
  const auto port = is_v6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                          : reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return {numeric_host(reinterpret_cast<const sockaddr&>(address)), ntohs(port)};
}

// The far end sees this address as the connection's source.
int bind_to(int fd, const std::string& from) {
  std::string why;
  const Addresses addresses = resolve(from, 0, AI_NUMERICHOST, {}, why);
  if (!addresses) return EADDRNOTAVAIL;
  const int on = 1;  // connect() chooses the port, when the peer's address is known
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  return bind(fd, addresses->ai_addr, addresses->ai_addrlen) == 0 ? 0 : errno;
}

}  // namespace

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const int ready = poll(&entry, 1, remaining_ms(deadline));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) throw Error("poll failed: {}", std::strerror(errno));
  }
}

std::string numeric_host(const sockaddr& address) {
  char text[NI_MAXHOST] = "";
  const socklen_t size = address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  getnameinfo(&address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

int remaining_ms(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, std::numeric_limits<int>::max()));
}

Fd listen_tcp(const std::string& host, std::uint16_t port) {
  std::string why;
  const Addresses addresses = resolve(host, port, AI_PASSIVE, std::chrono::steady_clock::now() + kNameToListenOn, why);
  if (!addresses)
    throw RendezvousError("cannot listen on {}: the name does not resolve ({})", Endpoint{host, port}.text(), why);
  Fd fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(fd.get(), 1024) != 0) {
    const int failure = errno;
    throw RendezvousError("cannot listen on {}: {}{}", Endpoint{host, port}.text(), std::strerror(failure),
                          failure == EADDRINUSE
                              ? "; another job, or a second rank 0, holds this port: end it or choose another port"
                          : failure == EADDRNOTAVAIL ? "; it must be an address of the machine on which rank 0 runs"
                                                     : "");
  }
  return fd;
}

std::uint16_t free_port() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0)
    throw RendezvousError("there is no free TCP port: {}", std::strerror(errno));
  return local_endpoint(fd.get()).port;
}

Endpoint local_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error("getsockname failed: {}", std::strerror(errno));
  return endpoint_of(address);
}

Endpoint peer_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {"(gone)", 0};
  return endpoint_of(address);
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

namespace {

// Returns 0 or the error, which may be EINPROGRESS.
int begin_connect(Fd& fd, const addrinfo& address, const std::string& from) {
  fd = Fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  if (const int failure = from.empty() ? 0 : bind_to(fd.get(), from); failure != 0) return failure;
  return connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
}

std::string reason_of(int failure, const std::string& from) {
  return from.empty() ? std::strerror(failure) : fmt::format("{}, from {}", std::strerror(failure), from);
}

}  // namespace

int connect_outcome(int fd) {
  int failure = 0;
  socklen_t size = sizeof failure;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0) return errno;
  // A connect to a free local port may connect to itself, if the chosen source port is the port that it connects to.
  if (failure == 0 && local_endpoint(fd).text() == peer_endpoint(fd).text()) failure = ECONNREFUSED;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return failure;
}

Fd start_connect_tcp(const std::string& host, std::uint16_t port, std::string& why, int& failure,
                     const std::string& from) {
  failure = 0;
  const Addresses addresses = resolve(host, port, AI_NUMERICHOST, {}, why);
  if (!addresses) return Fd();
  Fd fd;
  failure = begin_connect(fd, *addresses, from);
  if (failure == 0 || failure == EINPROGRESS) return fd;
  why = reason_of(failure, from);
  return Fd();
}

Fd try_connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline, std::string& why,
                   const std::string& from) {
  const Addresses addresses = resolve(host, port, 0, deadline, why);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Fd fd;
    int failure = begin_connect(fd, *address, from);
    if (failure == EINPROGRESS) {
      const bool decided =
          wait_for(fd.get(), POLLOUT, std::min(deadline, std::chrono::steady_clock::now() + kOneAddress));
      failure = decided ? 0 : ETIMEDOUT;
    }
    if (failure == 0) failure = connect_outcome(fd.get());
    if (failure == 0) return fd;
    why = reason_of(failure, from);
  }
  return Fd();
}

void notice_lost_machine(int fd, std::chrono::milliseconds lost_after) {
  const auto set = [&](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); };
  const int milliseconds = static_cast<int>(lost_after.count()), seconds = std::max(3, milliseconds / 1000);
  set(SOL_SOCKET, SO_KEEPALIVE, milliseconds == 0 ? 0 : 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);  // while data is unacknowledged no keepalive is sent
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds / 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds / 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
}

IoResult send_all(int fd, std::span<const std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      data = data.subspan(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(fd, POLLOUT, deadline)) return IoResult::kTimeout;
    } else if (sent == 0 || errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

IoResult receive_all(int fd, std::span<std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t got = recv(fd, data.data(), data.size(), MSG_DONTWAIT);
    if (got > 0) {
      data = data.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(fd, POLLIN, deadline)) return IoResult::kTimeout;
    } else if (got == 0 || errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

}  // namespace lockstep
