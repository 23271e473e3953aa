// Under which address of this machine the peers reach this rank: one of the interface that LOCKSTEP_INTERFACE names,
// else that of the route to MASTER_ADDR. Rings and messages listen on it, and connect from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/net/socket.h"

namespace lockstep {

// Addresses are numeric. A link-local one of IPv6 means nothing without its interface: fe80::1%eth0.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // empty: the interface has none

  bool operator==(const InterfaceAddress&) const = default;
};

bool is_ipv6(std::string_view address);
bool is_link_local(std::string_view address);

// Of all interfaces that are up, in the system's order.
std::vector<InterfaceAddress> interface_addresses();

// The addresses alone.
std::vector<std::string> addresses_of_this_machine();

// The address that `wanted` means, itself one of them or an interface's name. Of several that an interface has: first
// those of the family of `like`, and routed ones before link-local ones. Throws InvalidArgument that lists what there
// is.
std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& available,
                           std::string_view like);

// The address from which this machine reaches `host`; no packet is sent to it. Throws RendezvousError: no name by the
// deadline, or no route.
std::string address_towards(const std::string& host, std::uint16_t port, Deadline deadline);

// By LOCKSTEP_INTERFACE or the route to `host`.
std::string own_address(const std::string& host, std::uint16_t port, Deadline deadline);

// Which interface leads to a link-local address is each machine's own matter: peers are told the address without it ...
std::string without_scope(const std::string& address);
// ... and reach it through the interface on which they are reached themselves. Other addresses stay as they are.
std::string with_scope_of(const std::string& address, const std::string& own);

}  // namespace lockstep
