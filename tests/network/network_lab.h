// Machines and the network between them, for one test: network namespaces, each with an interface "lab0", connected by
// veth pairs and a bridge, or by a relay in this process that delays, loses and reorders packets.
//
// None of it has a name outside: descriptors of this process and the processes inside hold the namespaces, so that the
// kernel removes everything when those end, even after SIGKILL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/process/fd.h"
#include "tests/network/packet_relay.h"

namespace lockstep::testing {

enum class Link { kSwitch, kRelay };  // kSwitch: veth pairs and a bridge; kRelay: TUN interfaces, see PacketRelay

class NetworkLab {
 public:
  // Why this process cannot make a lab; "" if it can. For a test's GTEST_SKIP.
  static std::string obstacle(Link link = Link::kSwitch);
  static std::string obstacle_to_limits(Link link = Link::kSwitch);  // the same for a lab with limited rates
  static bool has_ipv6();

  // Throws std::runtime_error with the output of `ip`.
  explicit NetworkLab(int machines, Link link = Link::kSwitch);
  ~NetworkLab();
  NetworkLab(const NetworkLab&) = delete;
  NetworkLab& operator=(const NetworkLab&) = delete;

  int machines() const { return static_cast<int>(machines_.size()); }
  static std::string address(int machine) { return "10.83.0." + std::to_string(machine + 1); }
  static std::string address6(int machine) { return "fd83::" + std::to_string(machine + 1); }

  // The namespace, for setns(); see also ChildOptions::network.
  int network(int machine) const { return machines_[static_cast<std::size_t>(machine)].get(); }
  // Moves the calling thread, and those that it starts later, to that machine.
  void enter(int machine) const;

  // Limits both directions of a machine's link by tbf: "100mbit". Call it once for each machine.
  void limit_rate(int machine, const std::string& rate) const;
  // kSwitch: the link goes down on the switch's side. kRelay: packets vanish, while the machine sees a link that is up.
  void cut(int machine);
  void mend(int machine);
  // Takes the interface down on the machine: `ip link set lab0 down`. kSwitch only.
  void shut_interface(int machine) const;
  // Removes the route to the other machines; the address stays usable on the machine itself.
  void take_route(int machine) const;
  void give_route(int machine) const;
  PacketRelay& relay() { return *relay_; }  // kRelay

  // Bytes that left or reached that machine through lab0, including headers.
  struct Traffic {
    std::uint64_t sent = 0, received = 0;
  };
  Traffic traffic(int machine) const;

 private:
  void join_to_switch(int machine);
  void address_and_raise(int machine) const;

  Link link_;
  Fd switch_;  // the bridge's namespace
  std::vector<Fd> machines_;
  std::unique_ptr<PacketRelay> relay_;
};

}  // namespace lockstep::testing
