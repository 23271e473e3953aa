// Whether this machine resolves a name. A bare container may have no /etc/hosts, and so not even "localhost".
#pragma once

#include <netdb.h>

#include <iostream>
#include <string>

namespace lockstep::testing {

inline bool system_finds(const std::string& host) {
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (failure == 0) ::freeaddrinfo(found);
  if (failure != 0)
    std::cout << "left out: this machine does not know " << host << ": " << ::gai_strerror(failure) << "\n";
  return failure == 0;
}

}  // namespace lockstep::testing
