#include "src/comm/ring/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "lockstep/core/error.h"

namespace lockstep::ring {

namespace {

void wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd item{fd, events, 0};
    const int ready = poll(&item, 1, static_cast<int>(std::clamp<long>(left + 1, 0, 1'000'000)));
    if (ready > 0) return;
    if (ready == 0 && left <= 0) throw Error("no answer in time");
    if (ready < 0 && errno != EINTR) throw Error("poll: {}", std::strerror(errno));
  }
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList numeric_address(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failure != 0) throw Error("'{}' is not a numeric address: {}", host, gai_strerror(failure));
  return AddressList(list, &freeaddrinfo);
}

UniqueFd open_socket(const addrinfo& address) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error("cannot open a socket: {}", std::strerror(errno));
  return fd;
}

// A machine that vanishes says nothing: probes find out within 10 s, whether or not data is under way.
void configure(int fd) {
  const auto set = [&](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 9000);
}

}  // namespace

UniqueFd tcp_listen(const std::string& host, std::uint16_t& port) {
  const AddressList address = numeric_address(host, 0);
  UniqueFd listener = open_socket(*address);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (bind(listener.get(), address->ai_addr, address->ai_addrlen) != 0 || listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    throw Error("cannot listen on {}: {}", host, std::strerror(errno));
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return listener;
}

UniqueFd tcp_connect(const std::string& host, std::uint16_t port, Deadline deadline) {
  const AddressList address = numeric_address(host, port);
  UniqueFd fd = open_socket(*address);
  if (connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) throw Error("cannot connect: {}", std::strerror(errno));
    wait_for(fd.get(), POLLOUT, deadline);
    int failure = 0;
    socklen_t length = sizeof failure;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &length);
    if (failure != 0) throw Error("cannot connect: {}", std::strerror(failure));
  }
  configure(fd.get());
  return fd;
}

UniqueFd tcp_accept(int listener, Deadline deadline) {
  while (true) {
    wait_for(listener, POLLIN, deadline);
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) continue;  // gone again
    configure(fd.get());
    return fd;
  }
}

void tcp_send_all(int socket, std::span<const std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(socket, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0)
      data = data.subspan(static_cast<std::size_t>(sent));
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      wait_for(socket, POLLOUT, deadline);
    else if (errno != EINTR)
      throw Error("cannot send: {}", std::strerror(errno));
  }
}

void tcp_receive_all(int socket, std::span<std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t received = recv(socket, data.data(), data.size(), 0);
    if (received > 0)
      data = data.subspan(static_cast<std::size_t>(received));
    else if (received == 0)
      throw Error("the connection was closed");
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      wait_for(socket, POLLIN, deadline);
    else if (errno != EINTR)
      throw Error("cannot receive: {}", std::strerror(errno));
  }
}

}  // namespace lockstep::ring
