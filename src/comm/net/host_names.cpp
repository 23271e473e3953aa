#include "src/comm/net/host_names.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "lockstep/core/error.h"
#include "src/comm/net/resolve.h"
#include "src/comm/net/socket.h"

namespace lockstep {

std::string host_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string without_brackets(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

std::vector<std::string> resolve_host(const std::string& host, Deadline deadline, std::string& why) {
  const Addresses found = resolve(host, 0, 0, deadline, why);
  if (!found) return {};
  std::vector<std::string> addresses;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST] = "";
    if (::getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
        std::find(addresses.begin(), addresses.end(), text) == addresses.end())
      addresses.emplace_back(text);
  }
  if (addresses.empty()) why = "it has no address";
  return addresses;
}

Fd listen_on_one_of(const std::vector<std::string>& addresses, std::uint16_t port) {
  for (std::size_t i = 0;; ++i) {
    try {
      return listen_tcp(addresses.at(i), port);
    } catch (const RendezvousError&) {
      if (i + 1 >= addresses.size()) throw;
    }
  }
}

}  // namespace lockstep
