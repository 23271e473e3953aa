// Where rank 0 serves the store, and under which address. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Rank 0's choice among `resolved`, the numeric addresses of MASTER_ADDR, and `own`, those of its machine; to be tried
// in order.
//
// As a rule MASTER_ADDR is an address of rank 0's machine and the store listens there alone. When it is
// `named_for_others`, it may be a service's, be "localhost" in rank 0's own pod, stand for loopback in rank 0's own
// /etc/hosts, or not resolve yet: then it is the address of LOCKSTEP_INTERFACE (`chosen`, empty when not set), else all
// interfaces. Empty: the name must resolve first.
std::vector<std::string> store_addresses(const std::string& master_host, const std::vector<std::string>& resolved,
                                         const std::vector<std::string>& own, bool named_for_others,
                                         const std::string& chosen);

// The addresses by which a machine is reached: "10.0.0.1", without loopback.
struct MachineAddresses {
  std::string machine;  // the same text for processes of one machine (one network namespace)
  std::vector<std::string> addresses;
};

// The address of `own` by which the other machines reach it: the one whose leading bits agree with every other
// machine's best, those of the machine that agrees least counting. An address that another machine has as well (a
// container bridge) is none. Empty: there is no such address.
std::string address_for(const MachineAddresses& own, const std::vector<MachineAddresses>& others);

}  // namespace lockstep
