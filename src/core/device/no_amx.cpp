// Processors other than x86-64 have no AMX.
#include "src/core/device/amx_probe.h"

namespace lockstep {

bool amx_works() { return false; }

}  // namespace lockstep
