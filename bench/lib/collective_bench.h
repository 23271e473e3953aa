// The complete program of bench/all_reduce and bench/collective.
#pragma once

#include "bench/lib/settings.h"

namespace lockstep::bench {

// Returns the exit code: 1 if a result was wrong.
int collective_main(Program program, int argc, char** argv);

}  // namespace lockstep::bench
