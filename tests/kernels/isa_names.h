// The values of LOCKSTEP_ISA.
#pragma once

#include "lockstep/core/cpu_dispatch.h"

namespace lockstep::testing {

inline constexpr Isa kIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

inline const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "amx"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace lockstep::testing
