// Chooses one build of a function that for_each_isa.h compiled for several instruction sets.
#pragma once

#include "lockstep/core/cpu_dispatch.h"

namespace lockstep {

// The last build that this CPU can run.
template <typename T> T by_isa(T baseline, [[maybe_unused]] T avx2, [[maybe_unused]] T avx512) {
  const Isa isa = cpu_isa();
  return isa >= Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 ? avx2 : baseline;
}

}  // namespace lockstep

// A pointer to lockstep::<instruction set>::function, or the value of a constant of that name.
#if defined(__x86_64__)
#define LOCKSTEP_BY_ISA(name) \
  ::lockstep::by_isa(+::lockstep::baseline::name, +::lockstep::avx2::name, +::lockstep::avx512::name)
#else
#define LOCKSTEP_BY_ISA(name) (+::lockstep::baseline::name)
#endif
