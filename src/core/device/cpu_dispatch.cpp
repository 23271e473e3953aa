#include "lockstep/core/cpu_dispatch.h"

#include <algorithm>
#include <array>
#include <string>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "src/core/base/processor.h"
#include "src/core/device/amx_probe.h"

namespace lockstep {

namespace {

constexpr std::array kIsaNames = {"baseline", "avx2", "avx512", "amx"};  // in the order of Isa

const char* name_of(Isa isa) { return kIsaNames[static_cast<std::size_t>(isa)]; }

// AMX is only requested where it is wanted, because the system grants it to the entire process.
Isa supported(Isa wanted) {
  if (has_avx512()) return wanted >= Isa::kAmx && amx_works() ? Isa::kAmx : Isa::kAvx512;
  return has_avx2() ? Isa::kAvx2 : Isa::kBaseline;
}

Isa isa_of(const std::string& name) {
  const auto found = std::find(kIsaNames.begin(), kIsaNames.end(), name);
  if (found == kIsaNames.end())
    throw InvalidArgument("environment: {}='{}' is invalid: expected baseline, avx2, avx512 or amx", env::kIsa, name);
  return static_cast<Isa>(found - kIsaNames.begin());
}

Isa choose() {
  const auto name = env::text(env::kIsa);
  const Isa most = name ? isa_of(*name) : Isa::kAmx, best = supported(most);
  if (name && best < most)
    log::warn("{}={}, but this CPU supports {} at most: {} is used", env::kIsa, *name, name_of(best), name_of(best));
  return std::min(best, most);
}

}  // namespace

Isa cpu_isa() {
  static const Isa kIsa = choose();
  return kIsa;
}

}  // namespace lockstep
