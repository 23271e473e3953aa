#include "src/comm/net/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/comm/net/resolve.h"
#include "src/comm/net/socket.h"
#include "src/core/process/fd.h"

namespace lockstep {

namespace {

// An address as bits (4 or 16 bytes are used), so that ::1 and 0:0::1 are equal.
struct Bits {
  int family = AF_UNSPEC;
  std::array<unsigned char, 16> bytes{};
  bool operator==(const Bits&) const = default;
};

Bits bits_of(std::string_view address) {
  const std::string text(address.substr(0, address.find('%')));
  Bits bits;
  for (const int family : {AF_INET, AF_INET6})
    if (inet_pton(family, text.c_str(), bits.bytes.data()) == 1) bits.family = family;
  return bits;
}

std::string scope_of(std::string_view address) {
  const std::size_t percent = address.find('%');
  return percent == std::string_view::npos ? "" : std::string(address.substr(percent));
}

std::string list(const std::vector<InterfaceAddress>& available) {
  std::vector<std::string> names;
  for (const InterfaceAddress& each : available)
    if (std::find(names.begin(), names.end(), each.interface) == names.end()) names.push_back(each.interface);
  std::string text;
  for (const std::string& name : names) {
    std::string addresses;
    for (const InterfaceAddress& each : available)
      if (each.interface == name && !each.address.empty()) addresses += (addresses.empty() ? "" : ", ") + each.address;
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, addresses.empty() ? "no address" : addresses);
  }
  return text;
}

}  // namespace

bool is_ipv6(std::string_view address) { return bits_of(address).family == AF_INET6; }

bool is_link_local(std::string_view address) {
  const Bits bits = bits_of(address);
  return bits.family == AF_INET6 && bits.bytes[0] == 0xfe && (bits.bytes[1] & 0xc0) == 0x80;
}

std::string without_scope(const std::string& address) { return address.substr(0, address.find('%')); }

std::string with_scope_of(const std::string& address, const std::string& own) {
  return is_link_local(address) && is_link_local(own) && scope_of(address).empty() ? address + scope_of(own) : address;
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw Error("cannot list the network interfaces: {}", std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<InterfaceAddress> found;
  std::vector<std::string> names;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) == 0) continue;
    names.emplace_back(each->ifa_name);
    if (each->ifa_addr == nullptr || (each->ifa_addr->sa_family != AF_INET && each->ifa_addr->sa_family != AF_INET6))
      continue;
    found.push_back({each->ifa_name, numeric_host(*each->ifa_addr)});
  }
  for (const std::string& name : names)
    if (std::none_of(found.begin(), found.end(), [&](const InterfaceAddress& each) { return each.interface == name; }))
      found.push_back({name, ""});
  return found;
}

std::vector<std::string> addresses_of_this_machine() {
  std::vector<std::string> own;
  for (const InterfaceAddress& each : interface_addresses())
    if (!each.address.empty()) own.push_back(each.address);
  return own;
}

std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& available,
                           std::string_view like) {
  const Bits bits = bits_of(wanted);
  const InterfaceAddress* best = nullptr;
  const auto rank = [&](const InterfaceAddress& each) {
    return (is_ipv6(each.address) != is_ipv6(like) ? 2 : 0) + (is_link_local(each.address) ? 1 : 0);
  };
  for (const InterfaceAddress& each : available) {
    if (each.address.empty()) continue;
    if (bits.family != AF_UNSPEC) {
      const bool same_scope = scope_of(wanted).empty() || scope_of(wanted) == scope_of(each.address);
      if (bits == bits_of(each.address) && same_scope) return each.address;
    } else if (each.interface == wanted && (best == nullptr || rank(each) < rank(*best))) {
      best = &each;
    }
  }
  if (best != nullptr) return best->address;
  throw InvalidArgument("environment: {}={} names no interface or address of this machine that is up; it has {}",
                        env::kInterface, wanted, list(available));
}

std::string address_towards(const std::string& host, std::uint16_t port, Deadline deadline) {
  std::string why;
  const Addresses addresses = resolve(host, port, 0, deadline, why);
  if (!addresses) throw RendezvousError("{} does not resolve ({})", host, why);
  int reason = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const Fd fd(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // connected without a packet: only routed
    if (fd && connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0) return local_endpoint(fd.get()).host;
    reason = errno;
  }
  throw RendezvousError("this machine has no route to {} ({}); does {} name an interface?", host, std::strerror(reason),
                        env::kInterface);
}

std::string own_address(const std::string& host, std::uint16_t port, Deadline deadline) {
  const auto wanted = env::text(env::kInterface);
  if (!wanted) return address_towards(host, port, deadline);
  std::string like;
  try {
    like = address_towards(host, port, deadline);
  } catch (const RendezvousError&) {
    // The interface may be the only way to the peers: without a route to compare with, its first address is used.
  }
  return choose_address(*wanted, interface_addresses(), like);
}

}  // namespace lockstep
