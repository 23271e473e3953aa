#include "src/launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/launch/launch.h"
#include "src/core/compute_threads.h"

namespace lockstep::launch {

namespace {

constexpr int kMaxCores = 8192;

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

// -1 when the system does not say; all are then equal and the order stays that of the numbers.
int topology_of(int core, const char* property) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", core, property));
  int value = -1;
  return file >> value ? value : -1;
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
  for (const int core : affinity()) ordered.emplace_back(topology_of(core, "physical_package_id"), topology_of(core, "core_id"), core);
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

}  // namespace lockstep::launch
