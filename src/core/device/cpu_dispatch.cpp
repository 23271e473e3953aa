#include "lockstep/core/cpu_dispatch.h"

#include <algorithm>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "src/core/device/amx_probe.h"

namespace lockstep {

namespace {

// AMX is only requested where it is wanted, because the system grants it to the entire process.
Isa supported(Isa wanted) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    return wanted >= Isa::kAmx && amx_works() ? Isa::kAmx : Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kBaseline;
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
