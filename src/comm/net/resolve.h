// Resolves host names within a deadline: getaddrinfo() has none, and an unresponsive name server blocks it for many
// seconds.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "src/comm/net/socket.h"

namespace lockstep {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Returns the addresses in getaddrinfo's order, or none, with the reason in `why`. Numeric ones need no look-up. A name
// is resolved in a thread, which is abandoned at the deadline; then `why` keeps the text of an earlier attempt, if
// there was one.
Addresses resolve(const std::string& host, std::uint16_t port, int flags, Deadline deadline, std::string& why);

}  // namespace lockstep
