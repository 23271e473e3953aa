// Host names: this machine's, and others' that may start to resolve while we wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/net/socket.h"

namespace lockstep {

// For users who start a job on several machines without a secret.
inline constexpr const char* kHowToMakeAToken =
    "make one with `openssl rand -hex 32` and set LOCKSTEP_TOKEN to it, or LOCKSTEP_TOKEN_FILE to a file that holds "
    "it, on every machine; LOCKSTEP_INSECURE=1 does without, on a network that you trust";

// This machine's name, for messages.
std::string host_name();

// Returns "::1" for "[::1]", the form that users write before a port.
std::string without_brackets(const std::string& host);

// Its numeric addresses, in getaddrinfo's order. Empty, with the reason in `why`, if the name does not resolve now, or
// not by the deadline.
std::vector<std::string> resolve_host(const std::string& host, Deadline deadline, std::string& why);

// Listens on the first of these numeric addresses that belongs to this machine. Throws the RendezvousError of the last
// one.
Fd listen_on_one_of(const std::vector<std::string>& addresses, std::uint16_t port);

}  // namespace lockstep
