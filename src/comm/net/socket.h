// Sockets with deadlines, for the store and the transports. Every file descriptor closes on exec.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/endpoint.h"
#include "src/core/process/fd.h"

namespace lockstep {

using Deadline = std::chrono::steady_clock::time_point;

// Milliseconds until the deadline for poll(): never negative, rounded up.
int remaining_ms(Deadline deadline);
// Polls the descriptor. Returns true on one of the events, false at the deadline.
bool wait_for(int fd, short events, Deadline deadline);

// A listening TCP socket. Throws RendezvousError if the address cannot be bound (in use: with the port and what to do).
Fd listen_tcp(const std::string& host, std::uint16_t port);
// A port that was free on all interfaces a moment ago. Throws RendezvousError if there is none.
std::uint16_t free_port();
Endpoint local_endpoint(int fd);
Endpoint peer_endpoint(int fd);
// IPv4 or IPv6; a link-local address with its interface: fe80::1%eth0.
std::string numeric_host(const sockaddr& address);
bool is_loopback(const std::string& host);  // a numeric address or "localhost"

// Connects to a name or a numeric address, with TCP_NODELAY. Returns an empty Fd if this attempt failed, with the
// reason in `why`. `from` is the numeric address of this machine from which to connect; empty: the route's.
Fd try_connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline, std::string& why,
                   const std::string& from = "");

// The same for a numeric address, without waiting: the socket is writable when the outcome is known, see
// connect_outcome(). Empty: it failed, with `why` and the errno (0: the address itself is invalid).
Fd start_connect_tcp(const std::string& host, std::uint16_t port, std::string& why, int& failure,
                     const std::string& from = "");
int connect_outcome(int fd);  // 0, or an errno

// A machine that vanishes sends nothing. While a connection is idle, keepalives request an acknowledgement; without one
// for `lost_after`, or if sent data is not acknowledged for `lost_after`, the connection ends. Zero: the connection is
// no longer watched.
void notice_lost_machine(int fd, std::chrono::milliseconds lost_after);

enum class IoResult { kDone, kClosed, kTimeout };
// Transfers the complete range, on a blocking or non-blocking socket. kClosed: the peer closed or reset the connection.
IoResult send_all(int fd, std::span<const std::byte> data, Deadline deadline);
IoResult receive_all(int fd, std::span<std::byte> data, Deadline deadline);

}  // namespace lockstep
