// What a call or Work throws whose process group this rank has let go of.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

inline PeerLost group_gone() { return PeerLost("this rank's process group is gone: wait for a Work before its group goes"); }

}  // namespace lockstep
