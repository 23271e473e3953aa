// The address of this machine at which peers reach this rank: an address of the interface in LOCKSTEP_INTERFACE, else
// that of the route to MASTER_ADDR. Rings and messages listen on it, and connect from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/net/socket.h"

namespace lockstep {

// Addresses are numeric. A link-local IPv6 address is valid only with its interface: fe80::1%eth0.
struct InterfaceAddress {
  std::string interface;
  std::string address;  // empty: the interface has none

  bool operator==(const InterfaceAddress&) const = default;
};

bool is_ipv6(std::string_view address);
bool is_link_local(std::string_view address);

// The addresses of all interfaces that are up, in the system's order.
std::vector<InterfaceAddress> interface_addresses();

// Only the addresses.
std::vector<std::string> addresses_of_this_machine();

// The address for `wanted`, which is itself one of them or the name of an interface. If an interface has several, those
// of the family of `like` come first, and routed ones before link-local ones. Throws InvalidArgument that lists the
// existing ones.
std::string choose_address(const std::string& wanted, const std::vector<InterfaceAddress>& available,
                           std::string_view like);

// The address from which this machine reaches `host`; sends no packet. Throws RendezvousError if the name does not
// resolve by the deadline or there is no route.
std::string address_towards(const std::string& host, std::uint16_t port, Deadline deadline);

// The address by LOCKSTEP_INTERFACE or the route to `host`.
std::string own_address(const std::string& host, std::uint16_t port, Deadline deadline);

// The interface that leads to a link-local address differs between machines: peers get the address without it ...
std::string without_scope(const std::string& address);
// ... and add the interface of their own address. Other addresses are unchanged.
std::string with_scope_of(const std::string& address, const std::string& own);

}  // namespace lockstep
