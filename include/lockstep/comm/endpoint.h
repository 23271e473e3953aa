// The address of a listening TCP socket.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)
namespace lockstep {

// "host:port" with a numeric host ("127.0.0.1", "::1").
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  std::string text() const;  // IPv6 hosts in brackets
};

}  // namespace lockstep
#pragma GCC visibility pop
