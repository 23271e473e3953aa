// Chooses where rank 0 serves the store, and at which address. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Rank 0's choice among `resolved`, the numeric addresses of MASTER_ADDR, and `own`, those of its machine; try them in
// order.
//
// Normally MASTER_ADDR is an address of rank 0's machine, and the store listens only there. If it is
// `named_for_others`, it may be a service's name, be "localhost" in rank 0's own pod, map to loopback in rank 0's own
// /etc/hosts, or not resolve yet: then the store listens on the address of LOCKSTEP_INTERFACE (`chosen`, empty if not
// set), else on all interfaces. Empty: the name must resolve first.
std::vector<std::string> store_addresses(const std::string& master_host, const std::vector<std::string>& resolved,
                                         const std::vector<std::string>& own, bool named_for_others,
                                         const std::string& chosen);

// The addresses at which a machine can be reached: "10.0.0.1", without loopback.
struct MachineAddresses {
  std::string machine;  // the same text for all processes of a machine (of a network namespace)
  std::vector<std::string> addresses;
};

// The address of `own` at which the other machines reach it: the one with the longest common prefix with the other
// machines' addresses, measured by the machine that agrees least. An address that another machine also has (a container
// bridge) does not count. Empty: there is none.
std::string address_for(const MachineAddresses& own, const std::vector<MachineAddresses>& others);

}  // namespace lockstep
