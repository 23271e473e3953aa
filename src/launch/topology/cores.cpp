#include "src/launch/topology/cores.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/launch/launch.h"
#include "src/core/process/compute_threads.h"

namespace lockstep::launch {

namespace {

constexpr int kMaxCores = 8192;
constexpr std::size_t kMaxNodes = 1024;
constexpr std::size_t kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeCpuSet>;

CpuSet make_cpu_set() {
  CpuSet set(CPU_ALLOC(kMaxCores));
  if (!set) throw Error("launch: out of memory");
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMaxCores), set.get());
  return set;
}

// Returns -1 if the system does not provide it; then all cores are equal, and stay in numeric order.
int topology_of(int core, const char* property) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", core, property));
  int value = -1;
  return file >> value ? value : -1;
}

std::vector<int> among(const std::vector<int>& cores, const std::vector<int>& near) {
  std::vector<int> both;
  for (const int core : cores)
    if (std::find(near.begin(), near.end(), core) != near.end()) both.push_back(core);
  return both;
}

using Groups = std::map<std::vector<int>, std::vector<std::size_t>>;  // cores -> ranks

bool are_disjoint(const Groups& groups, std::size_t core_count) {
  std::vector<int> all;
  for (const auto& [cores, ranks] : groups) all.insert(all.end(), cores.begin(), cores.end());
  std::sort(all.begin(), all.end());
  return all.size() <= core_count && std::adjacent_find(all.begin(), all.end()) == all.end();
}

}  // namespace

std::vector<std::vector<int>> assign_cores(const std::vector<int>& cores, int ranks) {
  LOCKSTEP_CHECK(ranks > 0, "{} ranks", ranks);
  const auto wanted = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> shares(wanted);
  if (cores.size() < wanted) return shares;
  for (std::size_t rank = 0; rank < wanted; ++rank) {
    const auto begin = static_cast<std::ptrdiff_t>(rank * cores.size() / wanted);
    const auto end = static_cast<std::ptrdiff_t>((rank + 1) * cores.size() / wanted);
    shares[rank].assign(cores.begin() + begin, cores.begin() + end);
  }
  return shares;
}

std::vector<int> inherited_cores() {
  std::vector<std::tuple<int, int, int>> ordered;  // package, physical core, number
  for (const int core : affinity())
    ordered.emplace_back(topology_of(core, "physical_package_id"), topology_of(core, "core_id"), core);
  std::sort(ordered.begin(), ordered.end());
  std::vector<int> cores;
  for (const auto& entry : ordered) cores.push_back(std::get<2>(entry));
  return cores;
}

bool bind_to_cores(const std::vector<int>& cores) {
  const CpuSet set = make_cpu_set();
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCores);
  for (const int core : cores) CPU_SET_S(core, bytes, set.get());
  return ::sched_setaffinity(0, bytes, set.get()) == 0;
}

std::vector<std::vector<int>> assign_near_cores(const std::vector<int>& cores, const std::vector<NearDevice>& near) {
  const auto plain = [&] { return assign_cores(cores, static_cast<int>(near.size())); };
  Groups groups;
  for (std::size_t rank = 0; rank < near.size(); ++rank) {
    const std::vector<int> candidates = among(cores, near[rank].cores);
    if (candidates.empty()) return plain();
    groups[candidates].push_back(rank);
  }
  if (!are_disjoint(groups, cores.size())) return plain();
  std::vector<std::vector<int>> shares(near.size());
  for (const auto& [candidates, ranks] : groups) {
    auto split = assign_cores(candidates, static_cast<int>(ranks.size()));
    for (std::size_t i = 0; i < ranks.size(); ++i)
      shares[ranks[i]] = split[i].empty() ? candidates : std::move(split[i]);
  }
  return shares;
}

std::vector<int> memory_nodes(const std::vector<NearDevice>& near) {
  std::vector<int> nodes;
  for (const NearDevice& each : near) nodes.push_back(each.nodes.size() == 1 ? each.nodes[0] : -1);
  return nodes;
}

std::string memory_choice_obstacle() {
  int mode = MPOL_DEFAULT;
  if (::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, nullptr, 0ul) != 0)
    return fmt::format("the system refuses to say where memory comes from (get_mempolicy: {})", std::strerror(errno));
  return mode == MPOL_DEFAULT ? "" : "the launcher was started with a policy of its own (numactl)";
}

bool prefer_memory_of(int node) {
  std::array<unsigned long, kMaxNodes / kBitsPerWord> nodes{};
  const auto number = static_cast<std::size_t>(node);
  if (number >= kMaxNodes) return errno = EINVAL, false;
  nodes[number / kBitsPerWord] = 1ul << number % kBitsPerWord;
  return ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), kMaxNodes) == 0;
}

}  // namespace lockstep::launch
