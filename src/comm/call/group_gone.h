// The error of a call or Work whose process group this rank has destroyed.
#pragma once

#include "lockstep/core/error.h"

namespace lockstep {

inline PeerLost group_gone() {
  return PeerLost("this rank's process group was destroyed: wait for its Works before you destroy it");
}

}  // namespace lockstep
