#include "lockstep/core/cpu_dispatch.h"

#include <algorithm>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/base/processor.h"
#include "src/core/device/amx_probe.h"

namespace lockstep {

namespace {

// AMX is only requested where it is wanted, because the system grants it to the entire process.
Isa supported(Isa wanted) {
  if (has_avx512()) return wanted >= Isa::kAmx && amx_works() ? Isa::kAmx : Isa::kAvx512;
  return has_avx2() ? Isa::kAvx2 : Isa::kBaseline;
}

Isa wanted() {
  const auto name = env::text(env::kIsa);
  if (!name || *name == "amx") return Isa::kAmx;
  if (*name == "avx512") return Isa::kAvx512;
  if (*name == "avx2") return Isa::kAvx2;
  if (*name == "baseline") return Isa::kBaseline;
  throw InvalidArgument("environment: {}='{}' is invalid: expected baseline, avx2, avx512 or amx", env::kIsa, *name);
}

}  // namespace

Isa cpu_isa() {
  static const Isa kIsa = [] {
    const Isa most = wanted();
    return std::min(supported(most), most);
  }();
  return kIsa;
}

}  // namespace lockstep
