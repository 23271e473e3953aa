// Hosts by name: their own, and others' that may come to exist while we wait.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/comm/net/socket.h"

namespace lockstep {

// For users who start a job on several machines without a secret.
inline constexpr const char* kHowToMakeAToken =
    "make one with `openssl rand -hex 32` and set LOCKSTEP_TOKEN to it, or LOCKSTEP_TOKEN_FILE to a file that holds "
    "it, on every machine; "
    "LOCKSTEP_INSECURE=1 does without, on a network that you trust";

// This machine's, for messages.
std::string host_name();

// "[::1]" as people write it before a port, as "::1".
std::string without_brackets(const std::string& host);

// Its numeric addresses, as getaddrinfo orders them; none, and the reason in `why`, when the name does not resolve now,
// or not by the deadline.
std::vector<std::string> resolve_host(const std::string& host, Deadline deadline, std::string& why);

// Listens on the first of these numeric addresses that this machine has. Throws RendezvousError, that of the last one.
Fd listen_on_one_of(const std::vector<std::string>& addresses, std::uint16_t port);

}  // namespace lockstep
