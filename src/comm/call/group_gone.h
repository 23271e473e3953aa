// The error of a call or Work whose process group this rank has destroyed.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

inline PeerLost group_gone() {
  return PeerLost("this rank's process group is gone: wait for a Work before its group goes");
}

}  // namespace lockstep
