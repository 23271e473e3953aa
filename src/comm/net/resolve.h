// Names of hosts, within a deadline: getaddrinfo() itself knows none, and a name server that is silent keeps it for
// many seconds.
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

// As getaddrinfo orders them; none, and the reason in `why`. Numeric ones are found at once; for a name a thread asks,
// which is left to itself when the deadline comes first: a `why` of an earlier attempt, which got further, is then left
// as it is.
Addresses resolve(const std::string& host, std::uint16_t port, int flags, Deadline deadline, std::string& why);

}  // namespace lockstep
