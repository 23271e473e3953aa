// For tests that compare a GPU's results, or an emulated one's, with the CPU's and with those of another run:
// convolutions do not use TF32, and sums have a fixed order, unless LOCKSTEP_DETERMINISTIC is set already.
#pragma once

#include <stdlib.h>

#include "lockstep/core/environment.h"

namespace lockstep::testing {

inline const int kIsReproducible = ::setenv(env::kDeterministic, "1", 0);

}  // namespace lockstep::testing
