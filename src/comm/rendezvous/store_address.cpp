#include "src/comm/rendezvous/store_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "src/comm/net/interface.h"
#include "src/comm/net/socket.h"

namespace lockstep {

namespace {

bool holds(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool is_everywhere(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

// The number of leading bits that are equal in two addresses; 0 for different families.
int common_bits(const std::string& a, const std::string& b) {
  if (is_ipv6(a) != is_ipv6(b)) return 0;
  std::array<unsigned char, 16> bytes_a{}, bytes_b{};
  const int family = is_ipv6(a) ? AF_INET6 : AF_INET;
  if (inet_pton(family, a.c_str(), bytes_a.data()) != 1 || inet_pton(family, b.c_str(), bytes_b.data()) != 1) return 0;
  int bits = 0;
  const int all = family == AF_INET6 ? 128 : 32;
  const auto bit = [](const auto& bytes, int at) {
    return (bytes[static_cast<std::size_t>(at / 8)] >> (7 - at % 8)) & 1;
  };
  while (bits < all && bit(bytes_a, bits) == bit(bytes_b, bits)) ++bits;
  return bits;
}

// The agreement with the machine that agrees least.
int worst_agreement(const std::string& address, const std::vector<MachineAddresses>& others) {
  int worst = 1000;
  for (const MachineAddresses& other : others) {
    int best = 0;
    for (const std::string& theirs : other.addresses) best = std::max(best, common_bits(address, theirs));
    worst = std::min(worst, best);
  }
  return worst;
}

}  // namespace

std::vector<std::string> store_addresses(const std::string& master_host, const std::vector<std::string>& resolved,
                                         const std::vector<std::string>& own, bool named_for_others,
                                         const std::string& chosen) {
  const bool is_number = holds(resolved, master_host);
  if (!named_for_others || (is_number && is_loopback(master_host))) return resolved;
  std::vector<std::string> usable;
  for (const std::string& address : resolved)
    if (is_everywhere(address) || (holds(own, address) && (is_number || !is_loopback(address))))
      usable.push_back(address);
  if (!usable.empty()) return usable;
  if (!chosen.empty()) return {chosen};
  return {"::", "0.0.0.0"};
}

std::string address_for(const MachineAddresses& own, const std::vector<MachineAddresses>& all) {
  std::vector<MachineAddresses> others;
  for (const MachineAddresses& each : all)
    if (each.machine != own.machine) others.push_back(each);
  std::string best;
  int best_agreement = -1;
  for (const std::string& address : own.addresses) {
    if (std::any_of(others.begin(), others.end(),
                    [&](const MachineAddresses& other) { return holds(other.addresses, address); }))
      continue;
    const int agreement = worst_agreement(address, others);
    if (agreement <= best_agreement) continue;
    best = address;
    best_agreement = agreement;
  }
  return best;
}

}  // namespace lockstep
