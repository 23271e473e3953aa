// Non-blocking TCP sockets with deadlines, addresses being numeric.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "src/comm/ring/unique_fd.h"

namespace lockstep::ring {

using Deadline = std::chrono::steady_clock::time_point;

// Binds `host` and a free port, which is returned in `port`.
UniqueFd tcp_listen(const std::string& host, std::uint16_t& port);
// All below throw Error with the cause.
UniqueFd tcp_connect(const std::string& host, std::uint16_t port, Deadline deadline);
UniqueFd tcp_accept(int listener, Deadline deadline);
void tcp_send_all(int socket, std::span<const std::byte> data, Deadline deadline);
void tcp_receive_all(int socket, std::span<std::byte> data, Deadline deadline);

}  // namespace lockstep::ring
