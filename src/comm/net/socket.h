// Sockets with deadlines: what the store and the rings share. Every file descriptor closes on exec.
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
// Polls the descriptor until one of the events, true, or the deadline, false.
bool wait_for(int fd, short events, Deadline deadline);

// A listening TCP socket. Throws RendezvousError: the address cannot be bound (in use: by port and what to do).
Fd listen_tcp(const std::string& host, std::uint16_t port);
// A port that was free on all interfaces a moment ago. Throws RendezvousError when there is none.
std::uint16_t free_port();
Endpoint local_endpoint(int fd);
Endpoint peer_endpoint(int fd);
std::string numeric_host(
    const sockaddr& address);               // of IPv4 or IPv6; a link-local one with its interface: fe80::1%eth0
bool is_loopback(const std::string& host);  // a numeric address or "localhost"

// Connects to a name or a numeric address, with TCP_NODELAY; an empty Fd when this try failed, with the reason in
// `why`. `from`: the numeric address of this machine that the connection starts from; empty: the route's.
Fd try_connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline, std::string& why,
                   const std::string& from = "");

// The same for a numeric address, without waiting: writable when it is decided, see connect_outcome(). Empty: it
// failed, `why` and by which errno (0: the address itself is wrong).
Fd start_connect_tcp(const std::string& host, std::uint16_t port, std::string& why, int& failure,
                     const std::string& from = "");
int connect_outcome(int fd);  // 0, or an errno

// A machine that vanishes says nothing. While a connection is idle its kernel is asked for an acknowledgement
// (keepalive); without one for so long, or when data that was sent is not acknowledged for so long, the connection
// ends. Zero: it is no longer watched.
void notice_lost_machine(int fd, std::chrono::milliseconds lost_after);

enum class IoResult { kDone, kClosed, kTimeout };
// The whole range, or not: on a socket of either mode, poll-driven. kClosed: the peer went away (or reset).
IoResult send_all(int fd, std::span<const std::byte> data, Deadline deadline);
IoResult receive_all(int fd, std::span<std::byte> data, Deadline deadline);

}  // namespace lockstep
